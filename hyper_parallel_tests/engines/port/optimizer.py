"""Port of optimizers: AdamW, Muon, both chained, and which parameter is whose."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn


class Optimizer(Protocol):
    """Optimizers of parameters that may be divided over ranks: they step as they would on whole ones.

    State that belongs to each element is divided as its parameter is. Parameters without a gradient are left alone,
    with their state; a sharded parameter has its gradient on all ranks or on none. Steps are collective where a
    parameter's update needs more than a rank's own elements.

    ``step(closure)`` of ``AdamW`` and ``Muon`` calls it once, with gradients on, before it looks for gradients, and
    gives its result.
    """

    def AdamW(
        self,
        params: Iterable[Tensor] | Iterable[dict[str, Any]],
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 1e-2,
        foreach: bool | None = None,
    ) -> torch.optim.Optimizer:
        """Adam with decoupled weight decay: ``p -= lr * weight_decay * p``, then Adam's step of size ``lr``.

        Both moments' bias is corrected by the number of steps that the parameter itself has made.

        Args:
            params: parameters, or groups of them with options of their own.
            foreach: whether to use operations on lists of tensors; None leaves it to the engine. Changes no more than
                rounding.
        """

    def Muon(
        self,
        params: Iterable[Tensor] | Iterable[dict[str, Any]],
        lr: float = 2e-2,
        weight_decay: float = 0.1,
        matched_adamw_rms: float = 0.2,
        momentum: float = 0.95,
        nesterov: bool = True,
        ns_steps: int = 5,
    ) -> torch.optim.Optimizer:
        """Steps along the orthogonalised momentum of whole matrices, however they are divided.

        ``m = momentum * m + (1 - momentum) * grad``; the step goes along ``m``, with ``nesterov`` along
        ``momentum * m + (1 - momentum) * grad`` of the new ``m``. Newton-Schulz in bfloat16, with the coefficients
        3.4445, -4.7750 and 2.0315, brings its singular values near one. Weight decay is AdamW's.

        Args:
            params: matrices (rows, columns), or groups of them with options of their own.
            matched_adamw_rms: the step's size is ``lr`` times this times the root of the longer side.

        Raises:
            ValueError: a parameter is no matrix; has its shape.
        """

    def ChainedOptimizer(self, model: nn.Module, optimizers: Mapping[str, torch.optim.Optimizer]) -> Any:
        """Optimizers of disjoint parameters of one model, which step one after the other, in their order.

        ``step()``, ``zero_grad(set_to_none=True)``, ``param_groups``: of all of them.

        ``optimizers_dict``: the optimizers by name. ``param_names_by_optimizer``: the names of each one's parameters,
        in the model's order. Names are those of the model's state dict, which wrappers for checkpointing or compiling
        add nothing to.

        ``state_dict()``: flat, as PyTorch flattens optimizer state: ``state.<parameter>.<key>`` and
        ``param_groups.<parameter>.<option>``. Tensors are the optimizers' own, divided as the parameters are. A
        parameter that has not been stepped has no state. A shared parameter is there once.

        ``load_state_dict(state_dict)``: copies each value; it may be whole, or divided in any way, on ranks that all
        call this. By names alone: neither their order nor that of the optimizers matters. It stands for all there was:
        a parameter without state in it has none then. A group without parameters keeps its options.

        Raises:
            ValueError: two optimizers share a parameter, or one has a parameter that is not the model's; names it.
            KeyError: in ``load_state_dict``: options of a parameter are missing, part of its state is, or a name is
                unknown; lists them all, and nothing is loaded.
            ValueError: in ``load_state_dict``: a value has another shape than the parameter's, or parameters of one
                group have different options; names them, and nothing is loaded.
        """

    def get_hyper_optimizer(
        self, model: nn.Module, *, muon: Mapping[str, Any] | None = None, adamw: Mapping[str, Any] | None = None
    ) -> Any:
        """A ``ChainedOptimizer`` with "adamw" and "muon" of a model's trainable parameters, each in one of them.

        Matrices go to Muon. To AdamW go the weights of embeddings and of layers named ``lm_head``, ``output`` or
        ``output_layer``, whatever else shares them, all of a norm's parameters, and what is no matrix. AdamW does not
        decay vectors and scalars but for those of norms.

        Args:
            model: sharded or not; shard it before.
            muon, adamw: options of each; None for none of it: what is Muon's goes to AdamW then. ``param_patterns`` is
                a list of regular expressions: a parameter one of whose names has a match goes there in any case.

        Raises:
            ValueError: a trainable parameter is left without an optimizer, or the patterns of both match one, or Muon's
                one that is no matrix; names them.
            TypeError: ``param_patterns`` is one text.
        """

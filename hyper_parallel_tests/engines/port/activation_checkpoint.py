"""Port of activation checkpointing: regions whose activations are dropped in forward and computed again in backward."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from torch import nn


class ActivationCheckpoint(Protocol):
    """Regions of a network that keep what they are given, and not what they compute.

    In backward a region runs once more, when the first of its saved tensors is needed. It finds the random state and
    the autocast state of its forward, and backward leaves both as they were. A region that is never reached by
    backward, or that runs without gradients, does not run again.
    """

    CheckpointPolicy: Any
    """What becomes of an operator's output inside a region: ``MUST_SAVE`` and ``PREFER_SAVE`` keep it,
    ``MUST_RECOMPUTE`` and ``PREFER_RECOMPUTE`` drop it. The former of each pair bind compilers too.
    """

    def checkpoint(
        self,
        function: Callable[..., Any],
        *args: Any,
        policy_fn: Callable[..., Any] | list[Any] | None = None,
        use_reentrant: bool = False,
        **kwargs: Any,
    ) -> Any:
        """``function(*args, **kwargs)`` as a region. Three keywords are the region's own and not the function's.

        Args:
            function: gets and gives whatever it likes: tensors, None, numbers, nested structures.
            policy_fn: chooses per operator what is kept: see ``create_selective_checkpoint_contexts``. Not reentrant.
            use_reentrant: with it the region runs without a graph in forward and backward runs inside backward. It
                needs an input that requires gradients, takes no ``kwargs``, works under ``backward`` alone, never
                stops early and compares nothing.
            preserve_rng_state: True; without it the region draws other numbers when it runs again.
            determinism_check: ``default`` compares shape, dtype and device of each saved tensor, ``none`` compares
                their number only. Values are never compared: the gradient is that of what ran last.
            early_stop: True; the second run then ends with the last tensor that backward needs, so that hooks and side
                effects behind it happen once, and tensors that are saved beyond those of forward are not noticed.

        Raises:
            ValueError: an option has another value, or goes with reentrant regions and does not hold for them.
            RuntimeError: in backward: the region saved another number of tensors than in forward (with both numbers),
                tensors of other shape, dtype or device (with both), an input has been written to in between, or a
                selective region called an operator that it had not called.
        """

    def checkpoint_wrapper(
        self,
        module: nn.Module,
        *,
        policy_fn: Callable[..., Any] | list[Any] | None = None,
        use_reentrant: bool = False,
        **options: Any,
    ) -> nn.Module:
        """A module that calls ``module`` as a region.

        Its own ``named_parameters`` and each state dict have the names that they have without it; ``named_parameters``
        and ``named_modules`` of what it is in have not. Its attributes and items are those of ``module``. Hooks of the
        wrapper run once a step. Forward hooks of what it wraps run twice, backward hooks once.

        Args:
            policy_fn, use_reentrant, options: those of ``checkpoint``. Keywords of the call reach the module, in
                reentrant regions too.
        """

    def create_selective_checkpoint_contexts(
        self, policy_fn_or_list: Callable[..., Any] | list[Any], allow_cache_entry_mutation: bool = False
    ) -> tuple[AbstractContextManager[Any], AbstractContextManager[Any]]:
        """Contexts of a region's first and second run, for the ``context_fn`` of ``torch.utils.checkpoint``.

        Args:
            policy_fn_or_list: ``policy(context, operator, *args, **kwargs)`` gives a ``CheckpointPolicy`` for each
                operator (``torch.ops.aten.mm.default``), or a boolean: keep it or not. A list keeps the outputs of the
                operators that it has.
            allow_cache_entry_mutation: without it, a kept output that was written to is an error in backward.

        Raises:
            TypeError: neither a function nor a list.
            ValueError: something in the list is no operator with its overload; the message names it.
        """

    def set_checkpoint_early_stop(self, enable: bool) -> AbstractContextManager[None]:
        """Context in which regions are made with this ``early_stop``, whenever their backward runs."""

    def ActivationCheckpointConfig(
        self,
        mode: str = "selective",
        selective_ac_option: str = "2",
        op_sac_save_list: Sequence[str] = (),
        per_op_sac_force_recompute_mm_shapes_by_fqns: Sequence[str] = (),
        use_reentrant: bool = False,
        preserve_rng_state: bool = True,
        determinism_check: str = "default",
        early_stop: bool = True,
    ) -> Any:
        """Which layers are regions, and what they keep, as users write it. Source: TorchTitan's configuration.

        Args:
            mode: ``none``, ``full`` (each layer is a region) or ``selective``.
            selective_ac_option: with ``selective``, a number n: layers n, 2n, ... counted from one are regions; or
                ``op``: each layer is a region that keeps the outputs of ``op_sac_save_list``.
            op_sac_save_list: operators with their overloads, e.g. ``aten.mm.default``.
            per_op_sac_force_recompute_mm_shapes_by_fqns: parts of names of ``nn.Linear`` modules inside a layer. Matrix
                products by a weight of such a module's shape are recomputed all the same.
            use_reentrant, preserve_rng_state, determinism_check, early_stop: those of ``checkpoint``.

        Raises:
            ValueError: names the field, its value and what may stand there.
        """

    def apply_ac(self, layers: nn.Module, ac_config: Any) -> None:
        """Puts wrappers around the children of ``layers``, in their order, as the configuration says; in place.

        Args:
            layers: an ``nn.ModuleList``, ``nn.ModuleDict`` or ``nn.Sequential``. Layers are counted anew in each call.

        Raises:
            TypeError: ``layers`` is none of these.
            ValueError: a layer is wrapped already, or a name of the configuration matches no ``nn.Linear``.
        """

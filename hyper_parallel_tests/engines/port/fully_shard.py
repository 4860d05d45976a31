"""Port of fully sharded data parallelism: sharded and hybrid-sharded parameters."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    import torch
    from torch import nn

    from hyper_parallel_tests.engines.port.mesh import DeviceMeshMembers


@dataclass(frozen=True)
class ManagedParameter:
    """What the calling rank holds of one managed parameter at the moment of asking.

    All tensors are plain local tensors that alias the engine's own; nothing is copied, nothing communicates.

    Attributes:
        name: dotted name in the module that was asked about, as before wrapping.
        unit: dotted name of the wrapped module whose call manages the parameter; "" is the module itself.
        group: index of the communication group in the unit; parameters of one group share each collective.
        full_shape: shape before sharding.
        shard_dim: tensor dimension that is divided over the shard ranks; None for a replicated parameter.
        shard: what the optimizer updates: this rank's part without padding, possibly empty, or all of a
            replicated parameter.
        padded_shape: shape of the shard in collectives, the same on every rank of the shard group.
        resident: what the module has registered now: the shard, or the full tensor while it is unsharded.
        grad: what the optimizer reads, of ``shard``'s shape and dtype; None while there is no finished gradient.
        pending_grad: gradient accumulated but not wholly reduced: of ``full_shape`` before any reduction,
            shaped like ``shard`` once it only lacks the all-reduce over the replicas.
    """

    name: str
    unit: str
    group: int
    full_shape: tuple[int, ...]
    shard_dim: int | None
    shard: torch.Tensor
    padded_shape: tuple[int, ...]
    resident: torch.Tensor
    grad: torch.Tensor | None
    pending_grad: torch.Tensor | None


class UnshardHandleMembers(Protocol):
    """A running unshard."""

    def wait(self) -> None:
        """Returns when the full parameters may be read. Calling it again does nothing."""


class HSDPModuleMembers(Protocol):
    """What ``fully_shard`` adds to a module.

    A setter takes effect from the next forward or backward on. With ``recurse`` it reaches every wrapped
    module of the tree, without it only the parameters that this module's own call manages. A flag that is not
    a bool is a ValueError.
    """

    def set_requires_gradient_sync(self, requires_grad_sync: bool) -> None:
        """Whether backward reduces gradients over the ranks, in the whole tree.

        While off, they pile up unreduced on each rank (``pending_grad``) and join the next reduction.
        """

    def set_requires_all_reduce(self, requires_all_reduce: bool, *, recurse: bool = True) -> None:
        """Whether backward also reduces over the replicas of a hybrid mesh.

        While off, gradients stop after the reduction over the shard ranks (``pending_grad``) and join the
        next all-reduce.
        """

    def set_reshard_after_forward(self, reshard_after_forward: bool, recurse: bool = True) -> None:
        """Whether forward leaves shards behind, so that backward gathers again."""

    def set_reshard_after_backward(self, reshard_after_backward: bool, recurse: bool = True) -> None:
        """Whether backward leaves shards behind, so that the next forward gathers again.

        Parameters that stay full are not gathered again, so switch it back on before an update.
        """

    def set_reduce_op_type(self, reduce_op_type: str, recurse: bool = True) -> None:
        """Op "avg", the default, divides reduced gradients by the number of their ranks, "sum" does not.

        Raises:
            ValueError: neither "sum" nor "avg".
        """

    def set_gradient_scaling_factor(self, factor: float | torch.Tensor | None) -> None:
        """Multiplies what a reduction yields, in the whole tree and on top of the reduce op; None: nothing.

        A tensor of one element is read at each reduction, so its value may change between steps.

        Raises:
            ValueError: not a number, a tensor of one element or None.
        """

    def set_modules_to_forward_prefetch(self, modules: Sequence[nn.Module]) -> None:
        """Modules to gather before this one computes forward, in this order; an empty list ends it.

        Raises:
            ValueError: not a list or tuple, or one of it is not wrapped.
        """

    def set_modules_to_backward_prefetch(self, modules: Sequence[nn.Module]) -> None:
        """Modules to gather before this one computes backward, in this order; an empty list leaves the choice
        to the engine.

        Raises:
            ValueError: not a list or tuple, or one of it is not wrapped.
        """

    def set_is_last_backward(self, is_last_backward: bool) -> None:
        """Whether the next backward finishes the step.

        After one that does not, reductions may still be in flight, so gradients may be read only after one that
        does. Neither a reduction nor a value depends on it.
        """

    def unshard(self, async_op: bool = False) -> UnshardHandleMembers | None:
        """Gathers the full parameters of this module's own call; collective, nothing where they are there.

        With ``async_op`` the parameters stay shards until the returned handle is waited for, or until
        forward. Without, returns None.
        """

    def reshard(self) -> None:
        """Frees the full parameters of this module's own call; nothing where they are shards.

        Ends an asynchronous unshard that was not waited for: whatever gathers next, gathers anew.
        """

    def reset_iter_state(self) -> None:
        """Gets the tree ready for a new step after an exception ended a forward or backward half-way.

        Called on the root. Full parameters are freed, gathers and reductions under way are ended. Gradients of
        the failed step are lost or half there: ``zero_grad`` drops them, so call it too. Where it is left out,
        later steps are right all the same or refused, never silently wrong.
        """

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Drops every gradient of the tree, reduced or pending. Parameters are untouched.

        With ``set_to_none=False`` reduced gradients stay and are zeros; pending ones are dropped all the same.
        """


class FullyShard(Protocol):
    """Parameters divided over ranks, gathered to compute with, and gradients reduced back to their owners.

    A mesh of one dimension shards over all its ranks. One of two is (replicate, shard): each row holds all
    shards, the rows are replicas. Sharding follows ``torch.chunk``: ceil(size / ranks) rows each, the last
    parts shorter or empty.

    Order around ``module(...)``: pre-hooks registered with ``prepend=True`` after wrapping see shards; then
    the parameters are gathered; all other pre-hooks, the module's forward and forward hooks registered before
    wrapping see full parameters; then they are resharded; forward hooks registered after wrapping see shards.

    Around backward: when a gradient reaches any of the module's outputs that need one, at whatever place in a
    tuple, list, dict or dataclass, the parameters are gathered, once; when the gradients of its inputs are
    there, or at the end of backward at the latest, its gradients are reduced and the parameters resharded.

    ``module.forward(...)`` runs none of that. It computes with what is there: full parameters after
    ``unshard``, which it leaves so; with shards it is an error that speaks of DTensors. Under ``no_grad``
    ``module(...)`` gathers and reshards as ever.
    """

    HSDPModule: type[HSDPModuleMembers]

    def fully_shard(
        self,
        module: nn.Module | list[nn.Module],
        *,
        mesh: DeviceMeshMembers | None = None,
        reshard_after_forward: bool | int = True,
        shard_placement_fn: Callable[[nn.Parameter], Any] | None = None,
        mp_policy: Any = ...,
        offload_policy: Any = ...,
        ignored_params: set[nn.Parameter] | None = None,
        replicate_params: set[nn.Parameter] | None = None,
        comm_fusion: bool = False,
    ) -> Any:
        """Wraps ``module`` in place, bottom-up; its class becomes a subclass of ``HSDPModule`` too.

        Manages every parameter of the tree that no earlier call manages, each once. The first wrapped module
        to run forward becomes the root of those in its tree; running a wrapped ancestor later is an error.

        Args:
            module: one module, or a list. Modules of a list are controlled independently of each other,
                except where ``comm_fusion`` or a parameter that they share makes them one unit.
            mesh: None means one dimension over the whole world.
            reshard_after_forward: whether forward leaves shards behind; an int leaves each rank its part of
                the full parameters divided over so many neighbouring ranks, who gather them for backward.
            shard_placement_fn: parameter -> Shard(dim), Replicate() or None, which is Shard(0). A dimension
                other than 0 must divide evenly.
            mp_policy: a ``MixedPrecisionPolicy``.
            offload_policy: an ``OffloadPolicy``.
            ignored_params: left alone: neither sharded nor reduced.
            replicate_params: kept whole on every rank, gradients reduced over all ranks of the mesh.
            comm_fusion: one all-gather and one reduce-scatter for all parameters of the call, instead of one
                for each parameter. Changes no value.

        Returns:
            ``module``: the same object, or the same list.

        Raises:
            ValueError, TypeError: no module or no module with a forward, an empty list, a mesh of three
                dimensions or more, a parameter in sets that contradict each other, one that is not in fp32
                under ``apply_grad_on_fp32_main_grad`` if the engine keeps no gradient of another dtype.
            Exception: of the engine's choice, for a module that is wrapped already or whose parent is, and
                for a shard dimension that is out of range or does not divide; the message says which.
        """

    def MixedPrecisionPolicy(
        self,
        param_dtype: torch.dtype | None = None,
        reduce_dtype: torch.dtype | None = None,
        output_dtype: torch.dtype | None = None,
        cast_forward_inputs: bool = True,
        apply_grad_on_fp32_main_grad: bool = False,
    ) -> Any:
        """Dtypes around a wrapped module; None means no cast. Immutable, equal by value.

        Args:
            param_dtype: of parameters in forward and backward. Shards keep their own dtype.
            reduce_dtype: of gradients in collectives; None: that of the computed gradients.
            output_dtype: of floating-point outputs of the module's forward.
            cast_forward_inputs: whether floating-point inputs are cast to ``param_dtype``.
            apply_grad_on_fp32_main_grad: gradients accumulate in fp32, whatever ``param_dtype`` is. Shards that
                are not in fp32 get fp32 gradients beside them, or ``fully_shard`` refuses the policy.

        Raises:
            ValueError: a dtype is not a floating-point one, or fields contradict each other; it names them.
        """

    def OffloadPolicy(self) -> Any:
        """Shards, gradients and optimizer state stay on the device."""

    def CPUOffloadPolicy(self, pin_memory: bool = True) -> Any:
        """Shards, gradients and optimizer state live in host memory, pinned where the device can use that."""

    def managed_parameters(self, module: nn.Module) -> list[ManagedParameter]:
        """What ``module`` and its children hold of their managed parameters, in order of units and groups."""

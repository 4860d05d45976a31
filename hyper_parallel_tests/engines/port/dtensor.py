"""Port of distributed tensors: one logical tensor over the ranks of a mesh."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn

    from hyper_parallel_tests.engines.port.mesh import DeviceMeshMembers


class DTensorMembers(Protocol):
    """What a distributed tensor offers beside a tensor's operations, which act on it as on the full tensor."""

    device_mesh: DeviceMeshMembers
    placements: tuple[Any, ...]
    """One per dimension of the mesh; negative dimensions are resolved."""
    shape: torch.Size
    """Of the full tensor, as are ``ndim`` and ``numel()``."""
    grad: Any
    """Another distributed tensor of the same mesh and placements, or None."""

    def to_local(self) -> Tensor:
        """What the calling rank holds, without padding; differentiable. Empty on a rank outside the mesh."""

    def full_tensor(self) -> Tensor:
        """The full tensor, on every rank of the mesh; differentiable, collective over the mesh."""


class FactoryMembers(Protocol):
    """Makes a distributed tensor from nothing; nothing is sent."""

    def __call__(
        self,
        size: Sequence[int],
        *,
        device_mesh: DeviceMeshMembers,
        placements: Sequence[Any],
        dtype: torch.dtype | None = None,
        requires_grad: bool = False,
    ) -> DTensorMembers:
        """The calling rank makes its part of a tensor of full shape ``size``."""


class Dtensor(Protocol):
    """Distributed tensors: placements on a mesh, and operations that keep track of them.

    An operation on distributed tensors gives a distributed tensor; one on a distributed and a plain tensor is an
    error that names the operation. Placements of an inner dimension out of range, of more or fewer dimensions than
    the mesh, or of another kind are errors (ValueError, IndexError, RuntimeError or AssertionError) with the number.
    """

    DTensor: type[DTensorMembers]

    def distribute_tensor(
        self,
        tensor: Tensor,
        device_mesh: DeviceMeshMembers,
        placements: Sequence[Any],
        *,
        src_data_rank: int | None = None,
    ) -> DTensorMembers:
        """Divides a full leaf tensor; ``requires_grad`` goes along.

        Args:
            tensor: of any shape and dtype.
            placements: one per mesh dimension; for ``Partial`` the terms reduce to ``tensor``.
            src_data_rank: whose values count, as index along each mesh dimension, by communication. None: each rank
                divides its own tensor, which must be the same everywhere; nothing is sent.
        """

    def distribute_module(
        self,
        module: nn.Module,
        device_mesh: DeviceMeshMembers,
        partition_fn: Callable[[str, nn.Module, DeviceMeshMembers], None] | None = None,
        input_fn: Callable[[nn.Module, Any, DeviceMeshMembers], Any] | None = None,
        output_fn: Callable[[nn.Module, Any, DeviceMeshMembers], Any] | None = None,
    ) -> nn.Module:
        """Makes the parameters and buffers of ``module`` distributed, in place, and returns it.

        Args:
            partition_fn: called with the dotted name and module of each submodule; what it leaves plain becomes
                replicated.
            input_fn: turns the positional inputs before forward; output_fn: the output after it. Both run as hooks.
        """

    def from_local(
        self,
        local_tensor: Tensor,
        device_mesh: DeviceMeshMembers,
        placements: Sequence[Any],
        *,
        shape: Sequence[int] | None = None,
    ) -> DTensorMembers:
        """Joins what each rank holds; differentiable, and nothing is sent or checked.

        The gradient has the placements of the tensor, where these are ``Partial`` it is replicated.

        Args:
            shape: of the full tensor, needed where the parts differ in size.
        """

    def redistribute(
        self, tensor: DTensorMembers, device_mesh: DeviceMeshMembers, placements: Sequence[Any]
    ) -> DTensorMembers:
        """The same tensor in other placements, or on another mesh; differentiable.

        On the same mesh it is collective over the mesh, and free where nothing changes. To another mesh it is
        collective over the world, and ranks outside a mesh take part with what ``distribute_tensor`` gave them there.

        Raises:
            RuntimeError: a target is ``Partial`` where the source is not, which engines may refuse; it says so.
        """

    def apply_operator(self, operator: Callable[..., Any], *inputs: DTensorMembers) -> Any:
        """What ``operator``, a composition of PyTorch's operators, gives for distributed tensors; collective.

        Raises:
            EngineUnsupported: the engine has rules for some operators only, and not for one of these.
        """

    def backward(self, tensor: DTensorMembers | Sequence[DTensorMembers], gradient: Tensor | Sequence[Tensor]) -> None:
        """Runs backward from a distributed tensor, or from several at once, collective over their mesh.

        Gradients are those of the full tensor: what an engine wants of replicas, as a share for each, is done here.

        Args:
            tensor: one, or a list of several.
            gradient: of each full tensor, in full, the same on every rank.
        """

    def full_gradient(self, tensor: DTensorMembers) -> Tensor | None:
        """The gradient that backward left, of the full tensor and in full; None where there is none.

        Collective over the mesh. Where an engine leaves ``grad`` in another form than the port asks for, as terms to be
        summed over replicas, this joins them.
        """

    def compute_local_shape_and_global_offset(
        self, global_shape: Sequence[int], device_mesh: DeviceMeshMembers, placements: Sequence[Any]
    ) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Shape of the calling rank's part of a tensor of ``global_shape``, and where it begins; sends nothing.

        Where a part is empty, the offset along that dimension is the full size.
        """

    ones: FactoryMembers
    """Filled with one."""
    zeros: FactoryMembers
    """Filled with zero."""
    full: FactoryMembers
    """Filled with the number that follows ``size``, which decides the dtype where none is given."""
    empty: FactoryMembers
    """Of any values."""
    rand: FactoryMembers
    """Uniform in [0, 1). Ranks with equal states of the random number generator draw parts of one tensor: replicas
    agree, shards differ, and the states are equal afterwards."""
    randn: FactoryMembers
    """As ``rand``, from the standard normal distribution."""

    def register_sharding(
        self, op: Any, rule: Callable[..., Sequence[tuple[list[Any], list[Any]]]]
    ) -> AbstractContextManager[None]:
        """Context in which ``rule`` decides how operator ``op`` acts on distributed tensors.

        Args:
            op: an overload of an operator, e.g. ``torch.ops.aten.sin.default``.
            rule: gets the operator's arguments, with something that has ``ndim`` and ``shape`` in place of each
                tensor. Returns what is possible along one mesh dimension: pairs of the placements of the outputs
                and those of the arguments, None for an argument that is no tensor.
        """

    def SkipDTensorDispatch(self) -> AbstractContextManager[None]:
        """Context in which operations take each distributed tensor for the part that the calling rank holds.

        Results are plain tensors; changes in place reach the distributed tensor. For an optimizer's step, which goes
        element by element: its state is plain then. Not for what autograd must see.
        """

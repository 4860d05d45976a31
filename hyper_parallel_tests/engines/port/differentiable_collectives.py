"""Port of the collectives that autograd sees through."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from torch import Tensor
    from torch.distributed import ProcessGroup


class DifferentiableCollectives(Protocol):
    """Out-of-place collectives whose backward is a collective too: members run it in the same order.

    The gradient is that of the sum of all members' losses. ``group=None`` is the default group.
    """

    def differentiable_all_reduce(self, tensor: Tensor, *, group: ProcessGroup | None = None) -> Tensor:
        """Sum over the members, out of place. Gradient: the sum over the members of the output's."""

    def differentiable_all_gather(self, tensor: Tensor, dim: int = 0, *, group: ProcessGroup | None = None) -> Tensor:
        """The members' tensors, concatenated along ``dim``. Gradient: reduce-scatter of the output's."""

    def differentiable_reduce_scatter(
        self, tensor: Tensor, dim: int = 0, *, group: ProcessGroup | None = None
    ) -> Tensor:
        """This member's part along ``dim`` of the sum. Gradient: all-gather of the output's."""

    def differentiable_all_to_all(
        self,
        tensor: Tensor,
        output_split_sizes: list[int] | None = None,
        input_split_sizes: list[int] | None = None,
        *,
        group: ProcessGroup | None = None,
    ) -> Tensor:
        """``all_to_all_single``, out of place. Gradient: the inverse all-to-all of the output's."""

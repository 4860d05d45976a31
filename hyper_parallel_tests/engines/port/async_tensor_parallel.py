"""Port of asynchronous tensor parallelism: the products of a divided sequence, with their transfers beside them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from torch import Tensor

    from hyper_parallel_tests.engines.port.mesh import DeviceMeshMembers


class AsyncTensorParallel(Protocol):
    """What sequence parallelism does before its columnwise layers and after its rowwise ones, part by part.

    While a part of the sequence is multiplied the next one is under way. Values and gradients are those of the
    collective and the product one after the other, but for the order of sums. Ranks have equally many tokens each.

    ``device_mesh`` has one dimension, e.g. ``mesh["tp"]``. Tensors and gradients are plain ones. Both functions are
    collective, and so is their backward.

    Source: async tensor parallelism of PyTorch and TorchTitan, which fuse the pair when they compile.
    """

    def all_gather_matmul(
        self, tokens: Tensor, weights: Sequence[Tensor], device_mesh: DeviceMeshMembers, *, dim: int = 1
    ) -> list[Tensor]:
        """All ranks' tokens, gathered once, times each of this rank's weights.

        Args:
            tokens: (..., own tokens, ..., inner), this rank's part of the sequence.
            weights: (columns, inner) each, as a columnwise Linear has them.
            device_mesh: over whose ranks the sequence is divided.
            dim: dimension of the tokens, not the last one.

        Returns:
            For each weight (..., all tokens, ..., columns). The gradient of ``tokens`` is summed over the ranks.
        """

    def matmul_reduce_scatter(
        self, inputs: Tensor, weight: Tensor, device_mesh: DeviceMeshMembers, *, dim: int = 1
    ) -> Tensor:
        """The product with this rank's rows, summed over the ranks, of which each gets its tokens.

        Args:
            inputs: (..., all tokens, ..., own inner).
            weight: (outer, own inner), as a rowwise Linear has it.
            device_mesh: over whose ranks the sequence is to be divided.
            dim: dimension of the tokens, not the last one.

        Returns:
            (..., own tokens, ..., outer).

        Raises:
            ValueError: the ranks do not divide the tokens; the message has both numbers.
        """

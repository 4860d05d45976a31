"""Port of loss parallelism: cross entropy of logits whose vocabulary is divided over ranks."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Protocol


class LossParallel(Protocol):
    """Cross entropy without gathering the logits."""

    def loss_parallel(self) -> AbstractContextManager[None]:
        """Context in which ``cross_entropy`` of a distributed tensor communicates numbers per token, not per class.

        The logits are divided on the dimension of the classes, evenly or not; a rank may have none. Targets are class
        indices, and with the weights of the classes they are the same on all ranks, plain or replicated. All options
        of ``cross_entropy`` have their meaning. The loss is a replicated distributed tensor, and the gradient is
        divided as the logits are. Backward is run inside the context too. Contexts nest, and outside of them,
        whatever ended them, ``cross_entropy`` is as before.
        """

"""Port of the dry run: the bytes that a rank of a configuration will hold, found without them and without the ranks."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from torch import Tensor, nn
    from torch.optim import Optimizer


@dataclass(frozen=True)
class DryRunProgram:
    """One rank's training step, as its user writes it for a real run.

    Attributes:
        model: this rank's, wrapped as for training; of a pipeline, its stage.
        optimizer: of the model's parameters.
        forward: one forward pass, of one micro-batch where there are several, to the tensor that backward begins with.
        data: tensors that the user holds during the pass, such as the batch: they are not counted.
        in_flight: how many micro-batches wait for their backward at once at most.
    """

    model: nn.Module
    optimizer: Optimizer
    forward: Callable[[], Tensor]
    data: Sequence[Tensor] = ()
    in_flight: int = 1


class MemoryEstimate(Protocol):
    """Bytes that one rank holds, each storage once. Everything is about this rank's own parts, with
    the padding that they have in memory."""

    parameters: int
    """Of the model, between two steps."""
    gradients: int
    """As the optimizer reads them."""
    optimizer: int
    """States after the first update, counters too."""
    activations: int
    """What autograd keeps for backward at its height, of all micro-batches in flight. Parameters, gathered or not,
    buffers and ``data`` are not in it."""
    total: int


class DryRun(Protocol):
    """Dry runs. Source: S3 (DryRun: memory analysis, a cluster simulated on one card)."""

    def dry_run(
        self, program: Callable[[Any], DryRunProgram], degrees: Mapping[str, int], *, rank: int = 0
    ) -> MemoryEstimate:
        """Runs one training step of one rank without data, and counts what it would hold.

        Nothing is communicated and no tensor has storage, so that neither the world nor the model has to fit this
        machine. Shapes that hang on data are taken as in a balanced run: tokens are spread evenly over experts. The
        random state stays as it is, and so do the outer process groups.

        Args:
            program: makes the step, from the world's mesh. Everything it makes, it makes inside, and modules in the
                dtype that they are to have: PyTorch cannot convert them here.
            degrees: name and size of each mesh dimension, outermost first; they multiply to the simulated world.
            rank: whose bytes are counted.

        Raises:
            ValueError: no degrees, or one that is no positive integer; a rank outside the world; ``in_flight``
                below 1. The message names the culprit.
        """

    def format_estimates(self, estimates: Mapping[str, MemoryEstimate]) -> str:
        """A Markdown table, a line each, with bytes of each kind and in total."""

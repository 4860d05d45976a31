"""Port of pipeline balancing: which layers make which stage, by time and by memory. No communication."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True)
class LayerCost:
    """What one layer takes.

    Attributes:
        time: of forward and backward of one micro-batch, in any unit.
        parameter_memory: bytes that it takes whatever runs: parameters, gradients, states of the optimizer.
        activation_memory: bytes that one micro-batch leaves for backward.
    """

    time: float
    parameter_memory: int = 0
    activation_memory: int = 0


class PipelineBalance(Protocol):
    """Layers cut into stages."""

    stages: tuple[range, ...]
    """Layers of each stage: consecutive, in order, at least one."""
    times: tuple[float, ...]
    """Of each stage, for one micro-batch."""
    memory: tuple[int, ...]
    """Bytes of each stage: what its layers take, and activations of all micro-batches in flight."""
    step_time: float
    """Of a whole step under 1F1B: one micro-batch through all stages, and the slowest stage for each of the others."""


class PipelineBalancing(Protocol):
    """Balancing. Source: S3 (SAPP-PPB: pipeline parallelism balancing)."""

    def balance_pipeline(
        self,
        layers: Sequence[LayerCost],
        num_stages: int,
        *,
        micro_batches: int = 1,
        memory_limit: int | Sequence[int] | None = None,
    ) -> PipelineBalance:
        """The cut with the least step time that fits.

        Under 1F1B stage s of S has min(S - s, ``micro_batches``) micro-batches in flight. Of equally fast cuts, the one
        whose first stages have the fewest layers: compared by the first stage, then by the second, ...

        Args:
            layers: in order.
            memory_limit: bytes that a stage may take: one number for all, or one a stage; None for no limit.

        Raises:
            ValueError: no layers; fewer than one stage or micro-batch, or more stages than layers; a time that is
                negative or not finite, negative bytes; a limit that is not positive, or not one a stage; or no cut
                fits, and then the message has the limit, and the least that would do if it is one for all.
        """

    def micro_batches_in_flight(self, num_stages: int, micro_batches: int) -> tuple[int, ...]:
        """How many micro-batches each stage holds at once at most, under 1F1B."""

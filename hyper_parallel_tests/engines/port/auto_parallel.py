"""Port of automatic parallelism: degrees of parallelism for a decoder, by estimated time within a memory limit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol


@dataclass(frozen=True)
class Workload:
    """What is to be trained, and on what.

    Attributes:
        shape: sizes of a decoder: attributes vocab, hidden, layers, heads, kv_heads, head_width, ffn, seq, tied.
        rows: sequences in the whole batch of a step.
        micro_batches: into which a pipeline divides a rank's rows.
        flops: floating-point operations of one card in a second.
        bandwidth: bytes that a card sends in a second; may be infinite.
    """

    shape: Any
    rows: int
    micro_batches: int = 1
    flops: float = 1e14
    bandwidth: float = 1e11


class ParallelPlan(Protocol):
    """Degrees of parallelism, and what they are estimated to take."""

    degrees: Mapping[str, int]
    """pp, dp, fsdp and tp, outermost first: stages, replicas, shards, divided layers. They multiply to the world."""
    stages: tuple[range, ...]
    """Blocks of each pipeline stage. The first one has the embedding besides, the last one the output."""
    memory: int
    """Estimated bytes on the fullest rank: fp32 parameters, gradients, two states of Adam, activations."""
    memory_error: float
    """By what share of it the measured bytes may differ, up or down; a tenth at most."""
    time: float
    """Estimated seconds of a step."""


class AutoParallel(Protocol):
    """Search over degrees of parallelism. Source: S3 (SAPP-ND: search by memory and performance estimates)."""

    def estimate_plan(self, workload: Workload, degrees: Mapping[str, int]) -> ParallelPlan:
        """A plan of given degrees; those that are not given are 1. The cost model that ``search_plans`` compares by.

        With stages, each has the blocks that ``balance_pipeline`` gives it.

        Raises:
            ValueError: an unknown degree name, with near matches; a degree that is no positive integer; or the model
                or batch cannot be divided so: tp divides heads, kv_heads, ffn and vocab, pp is at most the layers and
                1 if tied, dp x fsdp and the micro-batches of a pipeline divide the rows. The message has both numbers.
        """

    def search_plans(
        self,
        workload: Workload,
        world_size: int,
        *,
        memory_limit: int,
        degrees: Sequence[str] = ("pp", "dp", "fsdp", "tp"),
        fixed: Mapping[str, int] | None = None,
        top_k: int | None = None,
    ) -> list[ParallelPlan]:
        """All plans for a world that can run and whose estimate is within the limit, the fastest first.

        Of equally fast ones the one with less memory comes first, then the one with fewer stages, then with less tp,
        then with less fsdp. The order hangs on nothing else, so that each rank and each run has the same.

        Args:
            memory_limit: bytes of one card.
            degrees: those that may be above 1.
            fixed: degrees that are given.
            top_k: how many plans at most; None for all.

        Raises:
            ValueError: an unknown degree name, with near matches; a world, limit or ``top_k`` below 1; ``fixed``
                degrees that do not divide the world; or no plan fits, and then the message has the limit and the least
                that would do, or says that no degrees can run at all.
        """

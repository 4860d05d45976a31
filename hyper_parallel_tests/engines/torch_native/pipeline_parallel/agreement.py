"""What the ranks of a pipeline tell each other, so that none waits for one that will not come.

PyTorch's stages send and receive without looking: if one raises, or has another plan, its neighbours hang.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch.distributed as dist
from torch.distributed import ProcessGroup

__all__ = ["Failure", "Plan", "agree_on", "raise_failures", "run_the_same"]


class Plan(NamedTuple):
    """What one rank is about to run.

    Attributes:
        common: what must be the same on all ranks: schedule, number of micro-batches, of stages, with backward or not.
        stages: the stages that this rank has.
        places: the rank that the schedule has each stage on.
        shapes: of this rank's arguments, for one micro-batch.
        changed: these are not the shapes of the run before.
        may_change: whether this rank's stages take that.
        problem: why this rank cannot run at all.
    """

    common: str
    stages: tuple[int, ...]
    places: Mapping[int, int] = {}
    shapes: str = ""
    changed: bool = False
    may_change: bool = True
    problem: str = ""


class Failure(NamedTuple):
    """An exception of a stage: where it was raised, and what it says."""

    stage: int
    what: str
    error: Exception

    def line(self) -> str:
        text = str(self.error).strip() or type(self.error).__name__
        cause = self.error.__cause__
        return f"stage {self.stage} failed in {self.what}: {text}" + (f" ({cause})" if cause else "")


def run_the_same(plan: Plan, group: ProcessGroup | None) -> list[Plan]:
    """The plans of all ranks, which have the same in common; collective.

    Raises:
        ValueError: one of them has a problem with its arguments.
        RuntimeError: they are about to run something else.
    """
    plans = _gather(plan, group)
    problems = [f"rank {rank}: {one.problem}" for rank, one in enumerate(plans) if one.problem]
    if problems:
        raise ValueError(f"the pipeline cannot run; {'; '.join(problems)}")
    if len({one.common for one in plans}) > 1:
        found = "; ".join(f"rank {rank} has {one.common}" for rank, one in enumerate(plans))
        raise RuntimeError(f"the ranks of a pipeline must run the same, but {found}")
    return plans


def agree_on(plan: Plan, stage_num: int, group: ProcessGroup | None) -> list[Plan]:
    """The plans of all ranks, which fit together: each stage is on one rank, where its schedule has it; collective.

    Raises:
        ValueError, RuntimeError: as of `run_the_same`.
        RuntimeError: stages are missing, on several ranks, or on others than the schedule has them on.
    """
    plans = run_the_same(plan, group)
    held = Counter(stage for one in plans for stage in one.stages)
    wrong = {stage: held[stage] for stage in sorted({*held, *range(stage_num)}) if held[stage] != (stage < stage_num)}
    if wrong:
        found = ", ".join(f"stage {stage} is on {ranks} ranks" for stage, ranks in wrong.items())
        raise RuntimeError(f"each stage from 0 to {stage_num - 1} must be on one rank of the pipeline, but {found}")
    moved = [
        f"stage {stage} on rank {one.places.get(stage)}, not on rank {rank}"
        for rank, one in enumerate(plans)
        for stage in one.stages
        if one.places.get(stage) != rank
    ]
    if moved:
        raise RuntimeError(f"give each rank the stages that its schedule has there: {', '.join(moved)}")
    return plans


def raise_failures(failures: Sequence[Failure], group: ProcessGroup | None) -> None:
    """Raise on all ranks if a stage failed on one; collective.

    Raises:
        RuntimeError: the message has the failures of all ranks, in the order of the stages.
    """
    lines = sorted((one.stage, one.line()) for one in failures)
    told = sorted(line for one in _gather(lines, group) for line in one)
    if told:
        message = "; then ".join(line for _, line in told)
        raise RuntimeError(message) from (failures[0].error if failures else None)


def _gather(said: Any, group: ProcessGroup | None) -> list[Any]:
    heard: list[Any] = [None] * dist.get_world_size(group)
    dist.all_gather_object(heard, said, group)
    return heard

"""Pipeline schedules of HyperParallel: the order in which its schedules execute, and its micro-batches.

A schedule makes its order when it is made, for all ranks, from stages that need not be able to communicate yet.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor, nn

from hyper_parallel_tests.engines.hyper_parallel.library import find, offered, platform, platform_has, refuse
from hyper_parallel_tests.engines.port import Unsupported

__all__ = [
    "BatchDimSpec",
    "dump_schedule_csv",
    "load_schedule_csv",
    "merge_microbatches",
    "mpipe_assignment",
    "mpipe_reordering",
    "mpipe_restore",
    "mpipe_table",
    "mpipe_transpose",
    "schedule_table",
    "split_into_stages",
    "split_microbatches",
    "split_target",
]

_NO_FILES = Unsupported("the library's orders come from its schedules alone, not from files")
_NO_MPIPE = Unsupported("the library has no multimodal schedules that could be asked for their order")

# Names of the library's schedules, as the port knows them.
_SCHEDULES = {"gpipe": "ScheduleGPipe", "1f1b": "Schedule1F1B", "interleaved1f1b": "ScheduleInterleaved1F1B"}
_NOT_THE_LIBRARYS = ("loopedbfs", "interleavedzerobubble", "zbvzerobubble", "dualpipev")

_KINDS = {
    "FWD": "F",
    "BWD": "B",
    "BWD_INPUT": "I",
    "BWD_WEIGHT": "W",
    "FWD_SEND": "SEND_F",
    "FWD_RECV": "RECV_F",
    "BWD_SEND": "SEND_B",
    "BWD_RECV": "RECV_B",
}


def _places(name: str) -> list[str]:
    return [f"hyper_parallel:{name}", f"hyper_parallel.core.pipeline_parallel:{name}"]


_stage_class = find(*_places("PipelineStage"))

BatchDimSpec = offered(*_places("BatchDimSpec"), reason="this version of the library has no pipelines")
split_into_stages = Unsupported("the library takes a model that its user has divided into stages")
split_target = Unsupported("the library's last stage computes the loss itself: a target is an argument of that stage")
merge_microbatches = Unsupported("the library hands out the outputs of each micro-batch")
load_schedule_csv = dump_schedule_csv = _NO_FILES
mpipe_assignment = mpipe_reordering = mpipe_restore = mpipe_table = mpipe_transpose = _NO_MPIPE


def schedule_table(
    schedule: str,
    pp_size: int,
    n_microbatches: int,
    *,
    stages_per_rank: int | None = None,
    with_communication: bool = True,
) -> dict[int, list[str]]:
    """See the port. The first rank's schedule is asked, which knows the order of all."""
    name = _SCHEDULES.get(schedule.lower())
    if schedule.lower() in _NOT_THE_LIBRARYS or (name and find(*_places(name)) is None):
        refuse("schedule_table", f"this version of the library has no {schedule}")
    if name is None:
        raise ValueError(f"no schedule {schedule!r}: expected one of {', '.join(_SCHEDULES)}")
    if pp_size < 1:
        refuse("schedule_table", "the library counts ranks by their stages, of which there are none here")
    per_rank = stages_per_rank or (2 if name == "ScheduleInterleaved1F1B" else 1)
    stages = [_planned_stage(pp_size * number, pp_size * per_rank) for number in range(per_rank)]
    made = find(*_places(name))(stages, n_microbatches)
    return {
        rank: [
            f"{step.stage_index}{kind}{step.micro_index}"
            for step in steps
            if step is not None and (kind := _KINDS.get(step.type.name))
            if with_communication or "_" not in kind
        ]
        for rank, steps in sorted(made.exec_order.items())
    }


def _planned_stage(index: int, count: int) -> Any:
    """A stage of the library that is asked for its number only, and makes no group of ranks."""

    class PlannedStage(_stage_class):
        def init(self, *_: Any) -> None:
            pass

    return PlannedStage(nn.Identity(), index, count)


@platform_has("micro_batch")
def split_microbatches(
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    n_microbatches: int,
    args_batch_dim: Sequence[Any] | None = None,
    kwargs_batch_dim: Mapping[str, Any] | None = None,
) -> tuple[list[tuple[Any, ...]], list[dict[str, Any]]]:
    """See the port. The library divides evenly only, and refuses fewer rows than micro-batches as the port does."""
    dims = [*(args_batch_dim or [None] * len(args)), *((kwargs_batch_dim or {}).get(name) for name in kwargs)]
    for argument, dim in zip([*args, *kwargs.values()], dims, strict=True):
        rows = _rows(argument, dim)
        if rows > n_microbatches and rows % n_microbatches:
            refuse("split_microbatches", "the library divides a batch into micro-batches of one size only")
    split = platform().micro_batch(n_microbatches, args_batch_dim, kwargs_batch_dim)
    divided, named = split(args, kwargs)
    return [tuple(one) for one in divided], named


def _rows(argument: Any, dim: Any) -> int:
    """Size along the dimension of the batch; 0 for what is not divided."""
    batch_dim = 0 if dim is None else dim.batch_dim
    return argument.shape[batch_dim] if isinstance(argument, Tensor) and batch_dim != -1 else 0


if _stage_class is None:
    schedule_table = Unsupported("this version of the library has no pipelines")

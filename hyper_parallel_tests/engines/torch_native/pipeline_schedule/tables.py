"""Tables of PyTorch's schedules.

A schedule makes its order when it is made, from no more than numbers of its stages, so that stand-ins will do for them.
The order of computations is lowered to one with sends and receives as PyTorch's runtime of schedules does it.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator, Mapping, Sequence
from os import PathLike
from types import SimpleNamespace
from typing import Any, Literal

from torch.distributed.pipelining.schedules import (
    PipelineScheduleMulti,
    PipelineScheduleSingle,
    _Action,
    _PipelineScheduleRuntime,
    get_schedule_class,
)

_MESSAGES = ("SEND_F", "RECV_F", "SEND_B", "RECV_B")


def schedule_table(
    schedule: str,
    pp_size: int,
    n_microbatches: int,
    *,
    stages_per_rank: int | None = None,
    with_communication: bool = True,
) -> dict[int, list[str]]:
    """See the port. PyTorch's 1F1B and DualPipeV ask for as many micro-batches as stages, or more.

    Interleaved1F1B and InterleavedZeroBubble take any number below pp_size, from there on multiples of the number of
    their rounds, n_microbatches // pp_size.
    """
    schedule_class = get_schedule_class(schedule)
    if schedule_class in (PipelineScheduleSingle, PipelineScheduleMulti):
        raise ValueError(f"{schedule} is what schedules derive from, not one of them")
    single = issubclass(schedule_class, PipelineScheduleSingle)
    per_rank = stages_per_rank or (1 if single else 2)
    if min(pp_size, n_microbatches, per_rank) < 1 or (single and per_rank != 1):
        raise ValueError(
            f"{schedule} has {'one stage' if single else 'stages'} on each of its ranks, and micro-batches: "
            f"not {per_rank} on {pp_size} ranks with {n_microbatches} micro-batches"
        )
    stages = _stand_ins(pp_size, pp_size * per_rank)[:per_rank]
    made = schedule_class(stages[0] if single else stages, n_microbatches)
    if not single:
        return _text(made.pipeline_order_with_comms if with_communication else made.pipeline_order)
    # Schedules of one stage a rank name the reduction of gradients too, which the lowering wants to add itself.
    order = {
        rank: [action for action in actions if action is None or action.is_compute_op]
        for rank, actions in made.pipeline_order.items()
    }
    if not with_communication:
        return _text(order)
    runtime = _PipelineScheduleRuntime(stages, n_microbatches)
    runtime._prepare_schedule_with_comms(order)
    return _text(runtime.pipeline_order_with_comms)


def load_schedule_csv(
    path: str | PathLike[str],
    num_stages: int,
    n_microbatches: int,
    *,
    format: Literal["compute_only", "compute_comms"] = "compute_only",
) -> dict[int, list[str]]:
    """See the port."""
    with open(path, newline="") as file:
        ranks = len(list(csv.reader(file)))
    runtime = _PipelineScheduleRuntime(_stand_ins(ranks, num_stages), n_microbatches)
    try:
        runtime._load_csv(str(path), format)
    except (AssertionError, KeyError, RuntimeError, ValueError) as error:
        raise ValueError(f"{path} is no schedule of {num_stages} stages on {ranks} ranks: {error}") from error
    return _text(runtime.pipeline_order_with_comms)


def dump_schedule_csv(table: Mapping[int, Sequence[str]], path: str | PathLike[str]) -> None:
    """See the port."""
    order = {rank: [_Action.from_str(text) for text in table[rank]] for rank in sorted(table)}
    stages = 1 + max(action.stage_index for actions in order.values() for action in actions)
    runtime = _PipelineScheduleRuntime(_stand_ins(len(order), stages), 1)
    runtime.pipeline_order_with_comms = order
    runtime._dump_csv(str(path), "compute_comms")


def _stand_ins(pp_size: int, num_stages: int) -> list[Any]:
    """Stages as far as a schedule asks for them before it runs."""
    shared = {"group_size": pp_size, "group_rank": 0, "num_stages": num_stages, "submod": None}
    return [SimpleNamespace(stage_index=index, **shared) for index in range(num_stages)]


def _text(order: Mapping[int, Sequence[_Action | None]]) -> dict[int, list[str]]:
    """The port's table: without idle slots and data parallelism, simultaneous actions one after the other."""
    return {
        rank: [
            str(one)
            for action in actions
            for one in _parts(action)
            if one.is_compute_op or one.computation_type in _MESSAGES
        ]
        for rank, actions in sorted(order.items())
    }


def _parts(action: _Action | None) -> Iterator[_Action]:
    if action is not None:
        yield from action.sub_actions or (action,)

"""Faults of pipeline schedules on torch_native: tables, messages, and what is read from files."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

from hyper_parallel_tests.faults import Patch, fault

_SCHEDULES = "torch.distributed.pipelining.schedules"
_WARM_UP = ("rank", "n_local_stages", "microbatches_per_round", "pp_group_size", "n_microbatches")


def _changed_messages(patch: Patch, change: Callable[[list[Any]], list[Any]]) -> None:
    """Changes each rank's actions after sends and receives were added."""

    @patch.around(f"{_SCHEDULES}:_add_send_recv", parameters=("compute_actions", "stage_to_rank", "num_stages"))
    def add_send_recv(original: Any, *args: Any, **options: Any) -> Any:
        lowered = original(*args, **options)
        changed = {rank: change(list(actions)) for rank, actions in lowered.items()}
        if changed != lowered:
            patch.reached()
        return changed


def _is(action: Any, *kinds: str) -> bool:
    return action.computation_type.value in kinds


@fault(
    id="pp-forward-repeated",
    symptom="GPipe computes its first micro-batch twice, and its activations are never freed.",
    capability="pipeline_schedule",
    layer="l0",
    must_fail=["PP-0-02"],
)
def forward_repeated(patch: Patch) -> None:
    @patch.around(f"{_SCHEDULES}:ScheduleGPipe._get_pipeline_order", parameters=("self",))
    def order(original: Any, self: Any) -> Any:
        patch.reached()
        return {
            rank: [next(one for one in actions if one is not None), *actions]
            for rank, actions in original(self).items()
        }


@fault(
    id="pp-micro-batches-overtake",
    symptom="With LoopedBFS the losses of a step come in the reversed order of its micro-batches.",
    capability="pipeline_schedule",
    layer="l0",
    must_fail=["PP-0-02"],
)
def micro_batches_overtake(patch: Patch) -> None:
    @patch.around(f"{_SCHEDULES}:ScheduleLoopedBFS._calculate_single_rank_operations", parameters=("self", "rank"))
    def operations(original: Any, self: Any, rank: int) -> Any:
        patch.reached()
        last = self._n_microbatches - 1
        return [one and one._replace(microbatch_index=last - one.microbatch_index) for one in original(self, rank)]


@fault(
    id="pp-warm-up-too-long",
    symptom="Interleaved 1F1B runs out of memory on the first ranks, where the same schedule ran before.",
    capability="pipeline_schedule",
    layer="l0",
    must_fail=["PP-0-02"],
)
def warm_up_too_long(patch: Patch) -> None:
    @patch.around(f"{_SCHEDULES}:_get_warmup_ops", parameters=_WARM_UP)
    def warm_up(original: Any, rank: int, stages: int, in_round: int, size: int, total: int, **options: Any) -> int:
        patch.reached()
        return min(1 + original(rank, stages, in_round, size, total, **options), stages * total)


@fault(
    id="pp-file-unchecked",
    symptom="A schedule's file that lacks a backward pass is taken, and a stage trains with a part of the batch.",
    capability="pipeline_schedule",
    layer="l0",
    must_fail=["PP-0-02"],
)
def file_unchecked(patch: Patch) -> None:
    @patch.around(f"{_SCHEDULES}:_validate_schedule", parameters=("actions", "pp_group_size", "num_stages"))
    def validate(_: Any, actions: Any, *sizes: int) -> Any:
        patch.reached()
        return {one.stage_index: rank for rank, row in actions.items() for one in row if one is not None}


@fault(
    id="pp-ranks-wait-for-each-other",
    symptom="Training hangs in the first step where sends block: neighbours each want to receive before they send.",
    capability="pipeline_schedule",
    layer="l0",
    must_fail=["PP-0-02", "PP-0-03"],
)
def ranks_wait_for_each_other(patch: Patch) -> None:
    def change(actions: list[Any]) -> list[Any]:
        for at, (one, other) in enumerate(itertools.pairwise(actions)):
            if _is(one, "SEND_F", "SEND_B") and _is(other, "RECV_F", "RECV_B"):
                actions[at : at + 2] = other, one
        return actions

    _changed_messages(patch, change)


@fault(
    id="pp-gradient-not-sent",
    symptom="Training hangs at the end of the first step: a stage waits for the gradient of the last micro-batch.",
    capability="pipeline_schedule",
    layer="l0",
    must_fail=["PP-0-03"],
)
def gradient_not_sent(patch: Patch) -> None:
    def change(actions: list[Any]) -> list[Any]:
        sends = [one for one in actions if _is(one, "SEND_B")]
        return [one for one in actions if one not in sends[-1:]]

    _changed_messages(patch, change)


@fault(
    id="pp-receives-swapped",
    symptom="The loss does not fall: a stage computes two micro-batches with each other's activations.",
    capability="pipeline_schedule",
    layer="l0",
    must_fail=["PP-0-03"],
)
def receives_swapped(patch: Patch) -> None:
    def change(actions: list[Any]) -> list[Any]:
        received = [at for at, one in enumerate(actions) if _is(one, "RECV_F")]
        for at, other in zip(received[::2], received[1::2], strict=False):
            actions[at], actions[other] = actions[other], actions[at]
        return actions

    _changed_messages(patch, change)


@fault(
    id="pp-warm-up-too-short",
    symptom="Interleaved 1F1B computes the right values and takes longer.",
    capability="pipeline_schedule",
    layer="l0",
    must_fail=["PP-0-03"],
)
def warm_up_too_short(patch: Patch) -> None:
    @patch.around(f"{_SCHEDULES}:_get_warmup_ops", parameters=_WARM_UP)
    def warm_up(original: Any, rank: int, stages: int, in_round: int, size: int, total: int, **options: Any) -> int:
        patch.reached()
        return original(size - 1, stages, in_round, size, total, **options)


@fault(
    id="pp-weight-gradients-not-deferred",
    symptom="The zero-bubble schedule has a bubble.",
    capability="pipeline_schedule",
    layer="l0",
    must_fail=["PP-0-03"],
)
def weight_gradients_not_deferred(patch: Patch) -> None:
    @patch.around(f"{_SCHEDULES}:_get_1f1b_rank_ops", parameters=("n_local_stages", "pp_group_size", "warmup_ops"))
    def operations(original: Any, *args: Any, enable_zero_bubble: bool = False) -> Any:
        if not enable_zero_bubble:
            return original(*args)
        patch.reached()
        return original(*args[:-1], 0, enable_zero_bubble=True)


@fault(
    id="pp-messages-to-oneself",
    symptom="A V-shaped schedule hangs at its turning point, where a rank sends to itself.",
    capability="pipeline_schedule",
    layer="l0",
    must_fail=["PP-0-03"],
)
def messages_to_oneself(patch: Patch) -> None:
    def change(actions: list[Any]) -> list[Any]:
        stages = {one.stage_index for one in actions}
        for one in [one for one in actions if _is(one, "F") and one.stage_index + 1 in stages]:
            kind = type(one.computation_type)
            send = one._replace(computation_type=kind.SEND_F)
            receive = send._replace(stage_index=one.stage_index + 1, computation_type=kind.RECV_F)
            actions[actions.index(one) + 1 : actions.index(one) + 1] = send, receive
        return actions

    _changed_messages(patch, change)

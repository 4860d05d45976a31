"""Faults of process groups, handles and messages, in torch.distributed or in what torch_native adds to it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import torch.distributed as dist

from hyper_parallel_tests.faults import Patch, fault

_OURS = "hyper_parallel_tests.engines.torch_native"


@fault(
    id="col-destroy-leaves-the-default-group",
    symptom="After a restart in the same process the old group is still the default one.",
    capability="collectives",
    layer="l1",
    must_fail=["COL-1-01"],
    ranks="all",
)
def destroy_leaves_the_default_group(patch: Patch) -> None:
    @patch.around("torch.distributed.distributed_c10d:_update_default_pg", parameters=("pg",))
    def update(original: Any, pg: Any) -> None:
        if pg is None:
            patch.reached()
        else:
            original(pg)


@fault(
    id="col-destroy-leaves-the-subgroups",
    symptom="After a restart, groups of the earlier life pass for valid, and collectives on them hang.",
    capability="collectives",
    layer="l1",
    must_fail=["COL-1-01"],
    ranks="all",
)
def destroy_leaves_the_subgroups(patch: Patch) -> None:
    @patch.around("torch.distributed:destroy_process_group", parameters=("group",))
    def destroy(original: Any, group: Any = None) -> None:
        ranks = dist.distributed_c10d._world.pg_group_ranks
        default = dist.group.WORLD
        left = {known: members for known, members in ranks.items() if known is not default}
        original(group)
        if group is None and left:
            patch.reached()
            ranks.update(left)


class _Handle:
    """The handle of ``work``, to be spoilt."""

    def __init__(self, work: Any) -> None:
        self._work = work

    def wait(self) -> None:
        self._work.wait()

    def is_completed(self) -> bool:
        return self._work.is_completed()


def _spoil_handles(patch: Patch, handle: Callable[[Any], _Handle]) -> None:
    """Makes all_reduce return ``handle(work)`` for its work."""

    @patch.around(f"{_OURS}.collectives:all_reduce", parameters=("tensor", "op", "group", "async_op"))
    def all_reduce(original: Any, tensor: Any, op: str = "sum", *, group: Any = None, async_op: bool = False) -> Any:
        work = original(tensor, op, group=group, async_op=async_op)
        return work and handle(work)


@fault(
    id="col-handle-reports-completion-at-once",
    symptom="Code that polls is_completed() reads gradients before they are reduced: losses differ by run.",
    capability="collectives",
    layer="l1",
    must_fail=["COL-1-02"],
)
def handle_reports_completion_at_once(patch: Patch) -> None:
    class Hasty(_Handle):
        def is_completed(self) -> bool:
            patch.reached()
            return True

    _spoil_handles(patch, Hasty)


@fault(
    id="col-handles-end-only-in-order",
    symptom="A step that waits for its latest all-reduce first stands still for ever.",
    capability="collectives",
    layer="l1",
    must_fail=["COL-1-02"],
    ranks="all",
    watchdog=5,
)
def handles_end_only_in_order(patch: Patch) -> None:
    outstanding: list[_Handle] = []

    class InTurn(_Handle):
        def __init__(self, work: Any) -> None:
            super().__init__(work)
            outstanding.append(self)

        def wait(self) -> None:
            if outstanding[0] is not self:
                patch.reached()
                threading.Event().wait()
            outstanding.pop(0)
            super().wait()

    _spoil_handles(patch, InTurn)


@fault(
    id="col-messages-overtake",
    symptom="Pipeline stages get the second micro-batch for the first: the loss is that of shuffled data.",
    capability="collectives",
    layer="l1",
    must_fail=["COL-1-03"],
)
def messages_overtake(patch: Patch) -> None:
    held: list[tuple[Any, ...]] = []

    @patch.around(f"{_OURS}.point_to_point:send", parameters=("tensor", "dst", "group"))
    def send(original: Any, tensor: Any, dst: int, *, group: Any = None) -> None:
        if not held:
            held.append((tensor, dst))
            return
        patch.reached()
        original(tensor, dst, group=group)
        original(*held.pop(), group=group)


@fault(
    id="col-batch-runs-one-by-one",
    symptom="The first exchange with both neighbours never ends: all ranks send and nobody receives.",
    capability="collectives",
    layer="l1",
    must_fail=["COL-1-03"],
    ranks="all",
    watchdog=5,
)
def batch_runs_one_by_one(patch: Patch) -> None:
    @patch.around(f"{_OURS}.point_to_point:batch_isend_irecv", parameters=("transfers", "group"))
    def batch(_: Any, transfers: Any, *, group: Any = None) -> list[Any]:
        patch.reached()
        for direction, tensor, peer in transfers:
            (dist.send if direction == "send" else dist.recv)(tensor, peer, group)
        return []


@fault(
    id="col-group-argument-not-read",
    symptom="Every group sums over the whole world: tensor parallel outputs are too large by a factor.",
    capability="collectives",
    layer="l1",
    must_fail=["COL-1-04"],
    watchdog=5,
)
def group_argument_not_read(patch: Patch) -> None:
    @patch.around(f"{_OURS}.collectives:all_reduce", parameters=("tensor", "op", "group", "async_op"))
    def all_reduce(original: Any, tensor: Any, op: str = "sum", *, group: Any = None, async_op: bool = False) -> Any:
        if group is not None:
            patch.reached()
        return original(tensor, op, async_op=async_op)


@fault(
    id="col-split-is-called-by-own-count",
    symptom="Splitting stands still for ever once ranks are members of different numbers of groups.",
    capability="collectives",
    layer="l1",
    must_fail=["COL-1-04"],
    ranks="all",
    watchdog=5,
)
def split_is_called_by_own_count(patch: Patch) -> None:
    @patch.around(f"{_OURS}.runtime:_group_of_callers", parameters=("name", "ranks"))
    def group(_: Any, name: str, ranks: list[int]) -> Any:
        patch.reached()
        return dist.new_group(ranks, use_local_synchronization=True)


@fault(
    id="col-group-timeout-not-passed-on",
    symptom="When a rank dies the others stand still for half an hour, whatever timeout was asked for.",
    capability="collectives",
    layer="l1",
    must_fail=["COL-1-05"],
    watchdog=8,
)
def group_timeout_not_passed_on(patch: Patch) -> None:
    @patch.around("torch.distributed:new_group", parameters=("ranks", "timeout"))
    def new_group(original: Any, ranks: Any = None, timeout: Any = None, **options: Any) -> Any:
        if timeout is not None:
            patch.reached()
        return original(ranks, **options)


@fault(
    id="col-report-names-nobody",
    symptom="A stuck job says that something timed out, and not who did not come.",
    capability="collectives",
    layer="l1",
    must_fail=["COL-1-05"],
)
def report_names_nobody(patch: Patch) -> None:
    @patch.around(f"{_OURS}.collectives:meet", parameters=("collective", "group"))
    def meet(original: Any, collective: str, group: Any) -> None:
        try:
            original(collective, group)
        except RuntimeError:
            patch.reached()
            raise RuntimeError(f"{collective} timed out") from None

"""Faults of process groups, messages and collectives, in torch.distributed or in what torch_native adds to it."""

from __future__ import annotations

from typing import Any

import torch
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
    def make(original: Any) -> Any:
        def update(pg: Any) -> None:
            if pg is None:
                patch.reached()
            else:
                original(pg)

        return update

    patch.replace("torch.distributed.distributed_c10d:_update_default_pg", make, parameters=("pg",))


@fault(
    id="col-destroy-leaves-the-subgroups",
    symptom="After a restart, groups of the earlier life are still taken for valid, and collectives on them hang.",
    capability="collectives",
    layer="l1",
    must_fail=["COL-1-01"],
    ranks="all",
)
def destroy_leaves_the_subgroups(patch: Patch) -> None:
    def make(original: Any) -> Any:
        def destroy(group: Any = None) -> None:
            ranks = dist.distributed_c10d._world.pg_group_ranks
            default = dist.group.WORLD
            left = {known: members for known, members in ranks.items() if known is not default}
            original(group)
            if group is None and left:
                patch.reached()
                ranks.update(left)

        return destroy

    patch.replace("torch.distributed:destroy_process_group", make, parameters=("group",))


class _Reports:
    """A handle that always says that it is over."""

    def __init__(self, work: Any) -> None:
        self._work = work

    def wait(self) -> None:
        self._work.wait()

    def is_completed(self) -> bool:
        return True


@fault(
    id="col-handle-reports-completion-at-once",
    symptom="Code that polls is_completed() reads gradients before they are reduced: losses differ from run to run.",
    capability="collectives",
    layer="l1",
    must_fail=["COL-1-02"],
)
def handle_reports_completion_at_once(patch: Patch) -> None:
    def make(original: Any) -> Any:
        def all_reduce(tensor: Any, op: str = "sum", *, group: Any = None, async_op: bool = False) -> Any:
            work = original(tensor, op, group=group, async_op=async_op)
            if work is None:
                return None
            patch.reached()
            return _Reports(work)

        return all_reduce

    patch.replace(f"{_OURS}.collectives:all_reduce", make, parameters=("tensor", "op", "group", "async_op"))


class _InTurn:
    """A handle that can only be waited for after all that were started before it."""

    started: list[_InTurn] = []  # noqa: RUF012

    def __init__(self, work: Any, patch: Patch) -> None:
        self._work, self._patch = work, patch
        self.started.append(self)

    def wait(self) -> None:
        import threading

        if self.started[0] is not self:
            self._patch.reached()
            threading.Event().wait()
        self.started.pop(0)
        self._work.wait()

    def is_completed(self) -> bool:
        return self._work.is_completed()

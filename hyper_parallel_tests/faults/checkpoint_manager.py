"""Faults of the checkpoint manager on torch_native: when it saves, what it keeps, and which one it takes."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from typing import Any

import torch.distributed as dist

from hyper_parallel_tests.faults import Patch, fault

_OURS = "hyper_parallel_tests.engines.torch_native.checkpoint_manager"
_MANAGER = f"{_OURS}.manager:CheckpointManager"
_FOLDER = f"{_OURS}.folder:CheckpointFolder"


def _latest(patch: Patch, order: Callable[[Any, int], Any]) -> None:
    """The latest is the last one in an order that is not that of the steps."""

    @patch.around(f"{_MANAGER}.latest", parameters=("self",))
    def latest(_: Any, self: Any) -> int | None:
        steps = self.steps()
        found = max(steps, key=lambda step: order(self, step), default=None)
        if found != max(steps, default=None):
            patch.reached()
        return found


def _delete(folder: Any, steps: list[int]) -> None:
    if dist.get_rank() == 0:
        for step in steps:
            shutil.rmtree(folder.path(step))


@fault(
    id="manager-latest-by-name",
    symptom="A run goes on from step 9 although step 100 is there.",
    capability="checkpoint_manager",
    layer="l2",
    must_fail=["CK-2-03"],
)
def latest_by_name(patch: Patch) -> None:
    _latest(patch, lambda _, step: str(step))


@fault(
    id="manager-latest-by-time",
    symptom="After a folder was copied, a run goes on from whichever checkpoint was copied last.",
    capability="checkpoint_manager",
    layer="l2",
    must_fail=["CK-2-03"],
)
def latest_by_time(patch: Patch) -> None:
    _latest(patch, lambda manager, step: manager.path(step).stat().st_mtime)


@fault(
    id="manager-takes-incomplete",
    symptom="After a crash in a save no restart succeeds: each takes the half checkpoint.",
    capability="checkpoint_manager",
    layer="l2",
    must_fail=["CK-2-03"],
)
def takes_incomplete(patch: Patch) -> None:
    @patch.around(f"{_FOLDER}.complete", parameters=("self",))
    def complete(original: Any, self: Any) -> set[int]:
        found = {step for step, _ in self._named("")}
        if found != original(self):
            patch.reached()
        return found


@fault(
    id="manager-interval-off-by-one",
    symptom="Checkpoints are those of steps 3, 7, 11, and tools that look for 4, 8, 12 find none.",
    capability="checkpoint_manager",
    layer="l2",
    must_fail=["CK-2-03"],
)
def interval_off_by_one(patch: Patch) -> None:
    @patch.around(f"{_MANAGER}.save", parameters=("self", "step", "states", "force"))
    def save(original: Any, self: Any, step: int, states: Any, *, force: bool = False) -> bool:
        if force or self._interval == 1:
            return original(self, step, states, force=force)
        patch.reached()
        return not (step + 1) % self._interval and original(self, step, states, force=True)


@fault(
    id="manager-forced-save-ignored",
    symptom="What was trained since the last interval is lost when a run ends or is preempted.",
    capability="checkpoint_manager",
    layer="l2",
    must_fail=["CK-2-03"],
)
def forced_save_ignored(patch: Patch) -> None:
    @patch.around(f"{_MANAGER}.save", parameters=("self", "step", "states", "force"))
    def save(original: Any, self: Any, step: int, states: Any, *, force: bool = False) -> bool:
        if force:
            patch.reached()
        return original(self, step, states)


@fault(
    id="manager-deletes-before-the-new-one-is-complete",
    symptom="A crash in a save leaves a run without any checkpoint.",
    capability="checkpoint_manager",
    layer="l2",
    must_fail=["CK-2-03"],
)
def deletes_before_the_new_one_is_complete(patch: Patch) -> None:
    @patch.around(f"{_MANAGER}._save", parameters=("self", "step", "state"))
    def save(original: Any, self: Any, step: int, state: Any) -> None:
        steps = self.steps()
        if self._keep is not None and len(steps) >= self._keep:
            patch.reached()
            _delete(self, steps[: len(steps) - self._keep + 1])
        original(self, step, state)


@fault(
    id="manager-failed-save-deletes-the-only-one",
    symptom="The disk was full for one save, and the run has to begin anew.",
    capability="checkpoint_manager",
    layer="l2",
    must_fail=["CK-2-03"],
)
def failed_save_deletes_the_only_one(patch: Patch) -> None:
    @patch.around(f"{_MANAGER}._save", parameters=("self", "step", "state"))
    def save(original: Any, self: Any, step: int, state: Any) -> None:
        before = sorted(self._folder.complete())
        try:
            original(self, step, state)
        except Exception:
            patch.reached()
            _delete(self, before)
            raise


@fault(
    id="manager-keeps-one-more",
    symptom="Disks that were sized for K checkpoints are full.",
    capability="checkpoint_manager",
    layer="l2",
    must_fail=["CK-2-03"],
)
def keeps_one_more(patch: Patch) -> None:
    @patch.around(f"{_FOLDER}.prune", parameters=("self", "keep"))
    def prune(original: Any, self: Any, keep: int) -> None:
        patch.reached()
        original(self, keep + 1)


@fault(
    id="manager-incomplete-counts-as-kept",
    symptom="Crashes in saves push the good checkpoints out, one after the other.",
    capability="checkpoint_manager",
    layer="l2",
    must_fail=["CK-2-03"],
)
def incomplete_counts_as_kept(patch: Patch) -> None:
    @patch.around(f"{_FOLDER}.prune", parameters=("self", "keep"))
    def prune(original: Any, self: Any, keep: int) -> None:
        complete, begun = self.complete(), self.incomplete()
        if begun:
            patch.reached()
        _delete(self, [step for step in sorted(complete | begun)[:-keep] if step in complete])


@fault(
    id="manager-keeps-the-latest-written",
    symptom="A checkpoint that was touched by a backup is kept, and the newest but one deleted.",
    capability="checkpoint_manager",
    layer="l2",
    must_fail=["CK-2-03"],
)
def keeps_the_latest_written(patch: Patch) -> None:
    @patch.around(f"{_FOLDER}.prune", parameters=("self", "keep"))
    def prune(original: Any, self: Any, keep: int) -> None:
        steps = self.complete()
        by_time = sorted(steps, key=lambda step: self.path(step).stat().st_mtime)[:-keep]
        if by_time != sorted(steps)[:-keep]:
            patch.reached()
        _delete(self, by_time)


@fault(
    id="manager-ranks-disagree-on-the-latest",
    symptom="Where the file system lags, ranks load different steps, and the loss jumps.",
    capability="checkpoint_manager",
    layer="l2",
    must_fail=["CK-2-03"],
    ranks=[0],
)
def ranks_disagree_on_the_latest(patch: Patch) -> None:
    @patch.around(f"{_MANAGER}.steps", parameters=("self",))
    def steps(original: Any, self: Any) -> list[int]:
        found = sorted(self._folder.complete())
        if found != original(self):
            patch.reached()
        return found


@fault(
    id="manager-complete-step-replaced",
    symptom="A run that was started again by mistake overwrites the checkpoints of the first one.",
    capability="checkpoint_manager",
    layer="l2",
    must_fail=["CK-2-03"],
)
def complete_step_replaced(patch: Patch) -> None:
    @patch.around(f"{_FOLDER}.begin", parameters=("self", "target"))
    def begin(original: Any, self: Any, target: Any) -> Any:
        if target.exists():
            patch.reached()
            shutil.rmtree(target)
        return original(self, target)


@fault(
    id="manager-asynchronous-failure-swallowed",
    symptom="The disk has been full for days, and nobody was told that there are no checkpoints.",
    capability="checkpoint_manager",
    layer="l2",
    must_fail=["CK-2-03"],
)
def asynchronous_failure_swallowed(patch: Patch) -> None:
    @patch.around(f"{_MANAGER}.wait", parameters=("self",))
    def wait(original: Any, self: Any) -> None:
        try:
            original(self)
        except Exception:
            patch.reached()

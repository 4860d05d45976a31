"""Faults of restarts on other ranks on torch_native: what was each rank's own, and what does not go over."""

from __future__ import annotations

import re
from typing import Any

import torch.distributed as dist

from hyper_parallel_tests.faults import Patch, fault

_STATE = "hyper_parallel_tests.engines.torch_native.trainer.state"


def _elsewhere(id: str, symptom: str) -> Any:
    return fault(id=f"resume-{id}", symptom=symptom, capability="resume", layer="l2", must_fail=["RS-2-01"])


@_elsewhere("loss-of-a-window-by-own-rank", "On more ranks, the first loss behind a restart is too small.")
def loss_of_a_window_by_own_rank(patch: Patch) -> None:
    @patch.around(f"{_STATE}:_set_own", parameters=("trainer", "target"))
    def put(original: Any, trainer: Any, target: Any) -> None:
        original(trainer, target)
        if target["ranks.size"] != dist.get_world_size():
            patch.reached()
            trainer.state.window_loss = target.get(f"rank_{dist.get_rank()}.window_loss", 0.0)


def _left_here(id: str, symptom: str, keys: str) -> None:
    """Declares the defect that values whose keys match are restored on as many ranks alone."""

    @_elsewhere(id, symptom)
    def install(patch: Patch) -> None:
        @patch.around(f"{_STATE}:_fill", parameters=("target", "folder", "reader"))
        def fill(original: Any, target: dict[str, Any], folder: Any, reader: Any) -> None:
            before = {key: value for key, value in target.items() if re.match(keys, key)}
            original(target, folder, reader)
            if target["ranks.size"] != dist.get_world_size() and before:
                patch.reached()
                target.update(before)


_left_here("elsewhere-schedule-anew", "On other ranks the warm-up begins again.", r"scheduler\.")
_left_here("elsewhere-scale-anew", "On other ranks the loss scale is the first one again.", r"scaler\.")
_left_here(
    "elsewhere-settings-anew",
    "On other ranks settings that were changed are the old ones.",
    r"optimizer\.param_groups\.",
)
_left_here("elsewhere-callbacks-anew", "On other ranks the best metric is forgotten.", r"callbacks\.")

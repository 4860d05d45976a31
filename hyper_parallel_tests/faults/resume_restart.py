"""Faults of restarts on torch_native: what is each rank's own, on the same ranks and on others."""

from __future__ import annotations

from typing import Any

import torch.distributed as dist

from hyper_parallel_tests.faults import Patch, fault

_STATE = "hyper_parallel_tests.engines.torch_native.trainer.state"


def _restart(id: str, symptom: str) -> Any:
    return fault(id=f"resume-{id}", symptom=symptom, capability="resume", layer="l2", must_fail=["RS-2-01"])


@_restart("all-ranks-draw-as-the-first", "Behind a restart all ranks have the dropout masks of the first one.")
def all_ranks_draw_as_the_first(patch: Patch) -> None:
    @patch.around(f"{_STATE}:set_random_state", parameters=("state", "tracker"))
    def put(original: Any, state: Any, tracker: Any) -> None:
        if dist.get_world_size() > 1:
            patch.reached()
        shared = [state["torch"].clone()]
        dist.broadcast(shared[0], 0)
        original({**state, "torch": shared[0]}, tracker)


@_restart("loss-of-a-window-by-own-rank", "On more ranks, the first loss behind a restart is too small.")
def loss_of_a_window_by_own_rank(patch: Patch) -> None:
    @patch.around(f"{_STATE}:_set_own", parameters=("trainer", "target"))
    def put(original: Any, trainer: Any, target: Any) -> None:
        original(trainer, target)
        if target["progress.world_size"] != dist.get_world_size():
            patch.reached()
            trainer.state.window_loss = target.get(f"rank_{dist.get_rank()}.window_loss", 0.0)

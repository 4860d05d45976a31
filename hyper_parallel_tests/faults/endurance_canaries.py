"""Faults of a resumed run that show only where it has been long before, on torch_native."""

from __future__ import annotations

from typing import Any

import torch

from hyper_parallel_tests.faults import Patch, fault

# More steps than a case of a lower layer trains before it saves.
_MOST = 31


@fault(
    id="endurance-canaries-short-count",
    symptom="After a restart of a run that is no longer young the loss jumps: the optimizer's count of steps is lost.",
    capability="optim_state_dict",
    layer="l4",
    must_fail=["EN-05"],
    ranks="all",
)
def short_count(patch: Patch) -> None:
    @patch.around(
        "hyper_parallel_tests.engines.torch_native.optim_state_dict:set_optim_state_dict",
        parameters=("model", "optimizer", "optim_state_dict"),
    )
    def put(original: Any, model: Any, optimizer: torch.optim.Optimizer, *args: Any, **options: Any) -> None:
        original(model, optimizer, *args, **options)
        for state in optimizer.state.values():
            if state.get("step", 0) > _MOST:
                patch.reached()
                state["step"].fill_(1)

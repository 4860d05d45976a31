"""Faults of resume on torch_native: checkpoints that do not fit, or fit though their names seem others."""

from __future__ import annotations

from typing import Any

from hyper_parallel_tests.faults import Patch, fault

_OPTIMIZER = "hyper_parallel_tests.engines.torch_native.trainer.optimizer_state"


def _mismatch(id: str, symptom: str) -> Any:
    return fault(id=f"resume-{id}", symptom=symptom, capability="resume", layer="l1", must_fail=["RS-1-01"])


@_mismatch("state-of-others-dropped", "A layer that was forgotten in the optimizer is not trained on, silently.")
def state_of_others_dropped(patch: Patch) -> None:
    @patch.around(
        "hyper_parallel_tests.engines.torch_native.trainer.state:optimizer_targets",
        parameters=("model", "optimizer", "saved"),
    )
    def targets(original: Any, model: Any, optimizer: Any, saved: Any) -> Any:
        updated = {id(one) for group in optimizer.param_groups for one in group["params"]}
        left = tuple(f"state.{name}." for name, one in model.named_parameters() if id(one) not in updated)
        if left:
            patch.reached()
        return original(model, optimizer, {key: one for key, one in saved.items() if not key.startswith(left)})


@_mismatch("settings-of-first-parameter", "Groups that were put together have the settings of one of them, silently.")
def settings_of_first_parameter(patch: Patch) -> None:
    @patch.around(f"{_OPTIMIZER}:_by_parameter", parameters=("prefix", "state", "names"))
    def by_parameter(original: Any, prefix: str, state: Any, names: Any) -> Any:
        found = original(prefix, state, names)
        if prefix.startswith("param_groups") and any(one != next(iter(found.values())) for one in found.values()):
            patch.reached()
            return dict.fromkeys(found, next(iter(found.values())))
        return found


@_mismatch("names-of-wrappers", "When recomputation is switched on, a frozen layer trains on and a window is lost.")
def names_of_wrappers(patch: Patch) -> None:
    @patch.around(f"{_OPTIMIZER}:_bare", parameters=("name",))
    def bare(original: Any, name: str) -> str:
        if original(name) != name:
            patch.reached()
        return name

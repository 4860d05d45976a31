"""Faults of runs that go on on another mesh and save again, on torch_native."""

from __future__ import annotations

from typing import Any

from hyper_parallel_tests.faults import Patch, fault

_STATE_DICT = "torch.distributed.checkpoint.state_dict"


@fault(
    id="endurance-second-moment-saved-as-loaded",
    symptom="Of a run that has moved to other cards twice the loss jumps: steps are of the size of those long ago.",
    capability="optim_state_dict",
    layer="l4",
    must_fail=["EN-03"],
)
def second_moment_saved_as_loaded(patch: Patch) -> None:
    loaded: dict[int, dict[str, Any]] = {}

    @patch.around(f"{_STATE_DICT}:set_optimizer_state_dict", parameters=("model", "optimizers", "optim_state_dict"))
    def put(original: Any, model: Any, optimizers: Any, given: Any, *args: Any, **kwargs: Any) -> None:
        moments = {name: one["exp_avg_sq"] for name, one in given["state"].items() if "exp_avg_sq" in one}
        loaded[id(optimizers)] = {name: one.detach().clone() for name, one in moments.items()}
        original(model, optimizers, given, *args, **kwargs)

    @patch.around(f"{_STATE_DICT}:get_optimizer_state_dict", parameters=("model", "optimizers"))
    def get(original: Any, model: Any, optimizers: Any, *args: Any, **kwargs: Any) -> Any:
        found = original(model, optimizers, *args, **kwargs)
        for name, one in loaded.get(id(optimizers), {}).items():
            patch.reached()
            found["state"][name]["exp_avg_sq"] = one
        return found

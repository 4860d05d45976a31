"""Faults that show only where clipping meets sharded gradients that accumulate, on torch_native."""

from __future__ import annotations

from typing import Any

from hyper_parallel_tests.faults import Patch, fault

_PARAM = "torch.distributed.fsdp._fully_shard._fsdp_param:FSDPParam"


@fault(
    id="ix-norm-of-the-first-window",
    symptom="With accumulation each window is clipped by the norm of the first: later steps are too short or too long.",
    capability="clip_grad",
    layer="l3",
    must_fail=["IX-11"],
    ranks="all",
)
def norm_of_the_first_window(patch: Patch) -> None:
    windows: dict[Any, Any] = {}

    @patch.around(f"{_PARAM}.to_accumulated_grad_if_needed", parameters=("self",))
    def accumulate(original: Any, self: Any) -> None:
        windows.setdefault(id(self.sharded_param), None)
        original(self)

    @patch.around("hyper_parallel_tests.engines.torch_native.clip_grad:_norm", parameters=("parameters", "norm_type"))
    def norm(original: Any, parameters: Any, *args: Any) -> Any:
        found, key = original(parameters, *args), id(parameters[0])
        if key in windows and windows[key] is not None:
            patch.reached()
            return windows[key]
        if key in windows:
            windows[key] = found
        return found

"""Faults that show only where gradients of several runs of a pipeline are clipped, on torch_native."""

from __future__ import annotations

from typing import Any

import torch

from hyper_parallel_tests.faults import Patch, fault


@fault(
    id="ix-norm-of-the-first-run",
    symptom="With accumulation a pipeline clips too late: its stages' norms are those after the window's first run.",
    capability="clip_grad",
    layer="l3",
    must_fail=["IX-16"],
    ranks="all",
)
def norm_of_the_first_run(patch: Patch) -> None:
    early: dict[int, torch.Tensor] = {}

    @patch.around(
        "hyper_parallel_tests.engines.torch_native.pipeline_parallel.schedules:_Schedule._train",
        parameters=("self", "args", "kwargs"),
    )
    def train(original: Any, self: Any, *given: Any) -> Any:
        outputs = original(self, *given)
        own = [one for stage in self._stages for one in stage.submod.parameters()]
        norm = torch.nn.utils.get_total_norm([one.grad for one in own if one.grad is not None])
        early.setdefault(id(own[0]), norm)
        return outputs

    @patch.around("hyper_parallel_tests.engines.torch_native.clip_grad:_norm", parameters=("parameters",))
    def of_stages(original: Any, parameters: Any, *args: Any) -> Any:
        found = original(parameters, *args)
        taken = early.pop(id(parameters[0]), found)
        if not torch.equal(taken, found):
            patch.reached()
        return taken

"""Faults that show only where blocks are sharded and recomputed, by the kind of region, on torch_native."""

from __future__ import annotations

from typing import Any

import torch
from torch.distributed.fsdp import FSDPModule

from hyper_parallel_tests.faults import Patch, fault

_STATE = "torch.distributed.fsdp._fully_shard._fsdp_state:FSDPState"


def _is_sharded(module: Any) -> bool:
    return any(isinstance(one, FSDPModule) for one in module.modules())


@fault(
    id="ix-reentrant-forward-takes-no-gradient",
    symptom="With reentrant regions the loss falls more slowly: sharded layers hand on half of their gradient.",
    capability="fully_shard",
    layer="l3",
    must_fail=["FSDP-L2-03"],
    ranks="all",
)
def reentrant_forward_takes_no_gradient(patch: Patch) -> None:
    @patch.around(f"{_STATE}._post_forward", parameters=("self", "module", "input", "output"))
    def post_forward(original: Any, self: Any, module: Any, input: Any, output: Any) -> Any:
        output = original(self, module, input, output)
        # Only a reentrant region's second forward runs inside a backward that has not reached the unit yet.
        if torch._C._current_graph_task_id() != -1 and self._training_state.name != "PRE_BACKWARD":
            patch.reached()
            return (output + output.detach()) / 2
        return output


@fault(
    id="ix-sharded-regions-drop-nothing",
    symptom="Recomputation saves no memory as soon as the layers are sharded; numbers and times are as without it.",
    capability="activation_checkpoint",
    layer="l3",
    must_fail=["FSDP-L2-04"],
    ranks="all",
)
def sharded_regions_drop_nothing(patch: Patch) -> None:
    @patch.around(
        "torch.distributed.algorithms._checkpoint.checkpoint_wrapper:CheckpointWrapper.forward", parameters=("self",)
    )
    def forward(original: Any, self: Any, *args: Any, **kwargs: Any) -> Any:
        if not _is_sharded(self):
            return original(self, *args, **kwargs)
        patch.reached()
        return self._checkpoint_wrapped_module(*args, **kwargs)


@fault(
    id="ix-sharded-regions-run-three-times",
    symptom="With recomputation a step takes longer than it has to: sharded layers run a third time, in vain.",
    capability="fully_shard",
    layer="l3",
    must_fail=["FSDP-L2-05"],
    ranks="all",
)
def sharded_regions_run_three_times(patch: Patch) -> None:
    once_more: list[bool] = []

    @patch.around(f"{_STATE}._pre_forward", parameters=("self", "module", "args", "kwargs"))
    def pre_forward(original: Any, self: Any, module: Any, args: Any, kwargs: Any) -> Any:
        given = original(self, module, args, kwargs)
        if self._training_state.name == "PRE_BACKWARD" and not once_more:
            patch.reached()
            once_more.append(True)
            with torch.no_grad():
                module(*args, **kwargs)
            once_more.clear()
        return given

"""Faults that show only where recomputed regions meet another capability, on torch_native."""

from __future__ import annotations

from typing import Any

from hyper_parallel_tests.faults import Patch, fault

_STATE = "torch.distributed.fsdp._fully_shard._fsdp_state:FSDPState"
_PARAM = "torch.distributed.fsdp._fully_shard._fsdp_param:FSDPParam"


@fault(
    id="ix-recomputation-gathers-anew",
    symptom="With recomputation each sharded layer is gathered twice in backward, which costs time alone.",
    capability="fully_shard",
    layer="l3",
    must_fail=["IX-07"],
    ranks="all",
)
def recomputation_gathers_anew(patch: Patch) -> None:
    @patch.around(f"{_STATE}._pre_forward", parameters=("self", "module", "args", "kwargs"))
    def pre_forward(original: Any, self: Any, *args: Any) -> Any:
        if self._training_state.name == "PRE_BACKWARD":
            patch.reached()
            for group in self._fsdp_param_groups:
                group._to_sharded()
        return original(self, *args)


@fault(
    id="ix-recomputation-leaves-hooks",
    symptom="With recomputation memory grows step by step: each second forward registers another hook for backward.",
    capability="activation_checkpoint",
    layer="l3",
    must_fail=["IX-07"],
    ranks="all",
)
def recomputation_leaves_hooks(patch: Patch) -> None:
    @patch.around(f"{_STATE}._pre_forward", parameters=("self", "module", "args", "kwargs"))
    def pre_forward(original: Any, self: Any, module: Any, *args: Any) -> Any:
        if self._training_state.name == "PRE_BACKWARD":
            patch.reached()
            module.register_forward_hook(lambda *_: None)
        return original(self, module, *args)


@fault(
    id="ix-recomputed-layers-stay-in-memory",
    symptom="With recomputation sharding saves no memory: what a second forward has read stays gathered for good.",
    capability="fully_shard",
    layer="l3",
    must_fail=["IX-07"],
    ranks="all",
)
def recomputed_layers_stay_in_memory(patch: Patch) -> None:
    run_again: set[int] = set()

    @patch.around(f"{_STATE}._pre_forward", parameters=("self", "module", "args", "kwargs"))
    def pre_forward(original: Any, self: Any, *args: Any) -> Any:
        if self._training_state.name == "PRE_BACKWARD":
            run_again.update(id(one) for group in self._fsdp_param_groups for one in group.fsdp_params)
        return original(self, *args)

    @patch.around(f"{_PARAM}.free_unsharded_param", parameters=("self",))
    def free(original: Any, self: Any) -> None:
        if id(self) in run_again:
            patch.reached()
            return
        original(self)

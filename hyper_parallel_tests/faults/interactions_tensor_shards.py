"""Faults that show only where layers divided by tensor parallelism are sharded too, on torch_native."""

from __future__ import annotations

from typing import Any

from hyper_parallel_tests.faults import Patch, fault

_PARAM = "torch.distributed.fsdp._fully_shard._fsdp_param:FSDPParam"


@fault(
    id="ix-unsummed-gradients-reduced",
    symptom="Norms of a divided sequence drift apart between the ranks of a layer, each trains on its own tokens.",
    capability="fully_shard",
    layer="l3",
    must_fail=["IX-02"],
    ranks="all",
)
def unsummed_gradients_reduced(patch: Patch) -> None:
    @patch.around(f"{_PARAM}._get_grad_inner_tensor", parameters=("self", "grad"))
    def inner(original: Any, self: Any, grad: Any) -> Any:
        if self.is_dtensor and any(one.is_partial() for one in grad.placements):
            patch.reached()
            return grad.to_local()
        return original(self, grad)


@fault(
    id="ix-divided-layers-stay-gathered",
    symptom="Layers that are divided need more memory than others: they stay gathered after their forward.",
    capability="fully_shard",
    layer="l3",
    must_fail=["IX-02"],
    ranks="all",
)
def divided_layers_stay_gathered(patch: Patch) -> None:
    @patch.around("torch.distributed.fsdp._fully_shard._fsdp_param_group:FSDPParamGroup.reshard", parameters=("self",))
    def reshard(original: Any, self: Any) -> None:
        if self._training_state.name == "FORWARD" and any(one.is_dtensor for one in self.fsdp_params):
            patch.reached()
            return
        original(self)

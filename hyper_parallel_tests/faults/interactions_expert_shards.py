"""Faults that show only where experts divided over ranks are sharded too, on torch_native."""

from __future__ import annotations

from typing import Any

from hyper_parallel_tests.faults import Patch, fault

_FULLY_SHARD = "torch.distributed.fsdp._fully_shard"
_MODULE = "hyper_parallel_tests.engines.torch_native.fully_shard.module"


@fault(
    id="ix-factor-of-experts-dropped",
    symptom="Experts learn as many times too fast as there are ranks that share them out; everything else is right.",
    capability="fully_shard",
    layer="l3",
    must_fail=["IX-12"],
    ranks="all",
)
def factor_of_experts_dropped(patch: Patch) -> None:
    @patch.around(f"{_MODULE}:HSDPModule.set_gradient_scaling_factor", parameters=("self", "factor"))
    def set_factor(original: Any, self: Any, factor: Any) -> None:
        if any("ep" in one.device_mesh.mesh_dim_names for one in self.parameters()):
            patch.reached()
            return
        original(self, factor)


@fault(
    id="ix-neighbouring-experts-swapped",
    symptom="Losses drift away slowly under a right gradient norm: each expert learns from its neighbour's tokens.",
    capability="fully_shard",
    layer="l3",
    must_fail=["FSDP-L2-10"],
    ranks="all",
)
def neighbouring_experts_swapped(patch: Patch) -> None:
    @patch.around(f"{_FULLY_SHARD}._fsdp_param:FSDPParam._get_grad_inner_tensor", parameters=("self", "grad"))
    def inner(original: Any, self: Any, grad: Any) -> Any:
        found = original(self, grad)
        if not _is_of_experts(self):
            return found
        patch.reached()
        return found.flip(0)


@fault(
    id="ix-experts-reduced-with-others",
    symptom="On a mesh with replicas an expert learns from the tokens of the experts on other ranks.",
    capability="fully_shard",
    layer="l3",
    must_fail=["FSDP-L3-03"],
    ranks="all",
)
def experts_reduced_with_others(patch: Patch) -> None:
    def make(original: property) -> property:
        def group(self: Any) -> Any:
            experts = next((one for one in self.fsdp_params if _is_of_experts(one)), None)
            if experts is None:
                return original.fget(self)
            patch.reached()
            return experts._unsharded_dtensor_spec.mesh.get_group("ep")

        return property(group)

    patch.replace(f"{_FULLY_SHARD}._fsdp_param_group:FSDPParamGroup._all_reduce_process_group", make)


@fault(
    id="ix-some-ranks-gather-ahead-of-experts",
    symptom="Numbers are right, and on other meshes training stops: each rank waits for one that waits for another.",
    capability="fully_shard",
    layer="l3",
    must_fail=["FSDP-L2-10"],
    ranks="all",
)
def some_ranks_gather_ahead_of_experts(patch: Patch) -> None:
    @patch.around(f"{_FULLY_SHARD}._fsdp_state:FSDPState._pre_forward", parameters=("self", "module"))
    def pre_forward(original: Any, self: Any, *args: Any) -> Any:
        given = original(self, *args)
        own = [one for group in self._fsdp_param_groups for one in group.fsdp_params]
        if patch.rank % 2 and any(map(_is_of_experts, own)):
            states = self._state_ctx.all_states
            # The rows of the experts are exchanged after this; a group's own order stays.
            for following in states[states.index(self) + 1 :][:1]:
                for group in following._fsdp_param_groups:
                    patch.reached()
                    group._prefetch_unshard(group, "forward")
        return given


def _is_of_experts(param: Any) -> bool:
    """Whether a parameter of FSDP2 was divided over ranks that share experts out."""
    return param.is_dtensor and "ep" in param._unsharded_dtensor_spec.mesh.mesh_dim_names

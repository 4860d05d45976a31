"""Faults of fully_shard on torch_native: gradient sync over micro-steps, loading, and forwards without training."""

from __future__ import annotations

from typing import Any

import torch
from torch.distributed import fsdp

from hyper_parallel_tests.faults import Patch, fault

_FSDP = "torch.distributed.fsdp._fully_shard"
_OURS = "hyper_parallel_tests.engines.torch_native.fully_shard"
_SET_SYNC = f"{_OURS}.module:HSDPModule.set_requires_gradient_sync"


@fault(
    id="fs-sync-flag-not-read",
    symptom="set_requires_gradient_sync(False) saves nothing: each micro-step reduces its gradients.",
    capability="fully_shard",
    layer="l1",
    must_fail=["FS-1-07"],
    ranks="all",
)
def sync_flag_not_read(patch: Patch) -> None:
    @patch.around(_SET_SYNC, parameters=("self", "requires_grad_sync"))
    def write_only(_original: Any, self: Any, requires_grad_sync: bool) -> None:
        patch.reached()
        self.requires_grad_sync = requires_grad_sync


@fault(
    id="fs-sync-stays-off",
    symptom="Once gradient sync was off it never comes back, and ranks drift apart.",
    capability="fully_shard",
    layer="l1",
    must_fail=["FS-1-07"],
    ranks="all",
)
def sync_stays_off(patch: Patch) -> None:
    @patch.around(_SET_SYNC, parameters=("self", "requires_grad_sync"))
    def set_sync(original: Any, self: Any, requires_grad_sync: bool) -> None:
        if requires_grad_sync is True:
            patch.reached()
            return
        original(self, requires_grad_sync)


@fault(
    id="fs-unsynced-gradients-lost",
    symptom="Accumulation trains on the last micro-batch alone: gradients of steps with sync off are dropped.",
    capability="fully_shard",
    layer="l1",
    must_fail=["FS-1-07", "FSDP-L1-04"],
    ranks="all",
)
def unsynced_gradients_lost(patch: Patch) -> None:
    @patch.around(f"{_FSDP}._fsdp_param:FSDPParam.to_accumulated_grad_if_needed", parameters=("self",))
    def drop(_original: Any, self: Any) -> None:
        patch.reached()
        self._unsharded_param.grad = None


@fault(
    id="fs-parameters-kept-but-gathered-again",
    symptom="With resharding off each micro-step gathers the parameters that it still has.",
    capability="fully_shard",
    layer="l1",
    must_fail=["FS-1-07"],
    ranks="all",
)
def parameters_kept_but_gathered_again(patch: Patch) -> None:
    @patch.around(
        f"{_FSDP}._fsdp_param_group:FSDPParamGroup.pre_forward", parameters=("self", "module", "args", "kwargs")
    )
    def pre_forward(original: Any, self: Any, *args: Any) -> Any:
        if self.is_unsharded:
            patch.reached()
            self._to_sharded()
        return original(self, *args)


@fault(
    id="fs-load-replaces-parameters",
    symptom="After load_state_dict the optimizer updates parameters that the model no longer has.",
    capability="fully_shard",
    layer="l1",
    must_fail=["FS-1-04"],
    ranks="all",
)
def load_replaces_parameters(patch: Patch) -> None:
    @patch.around("torch.nn:Module.load_state_dict", parameters=("self", "state_dict", "strict", "assign"))
    def load_state_dict(original: Any, self: Any, state_dict: Any, strict: bool = True, assign: bool = False) -> Any:
        if isinstance(self, fsdp.FSDPModule):
            patch.reached()
            assign = True
        return original(self, state_dict, strict, assign)


@fault(
    id="fs-load-writes-a-copy",
    symptom="load_state_dict returns as if it had worked, and the model goes on with its old weights.",
    capability="fully_shard",
    layer="l1",
    must_fail=["FS-1-04"],
    ranks="all",
)
def load_writes_a_copy(patch: Patch) -> None:
    @patch.around("torch.nn:Module.load_state_dict", parameters=("self", "state_dict", "strict", "assign"))
    def load_state_dict(original: Any, self: Any, state_dict: Any, strict: bool = True, assign: bool = False) -> Any:
        kept = [one.detach().clone() for one in self.parameters()]
        found = original(self, state_dict, strict, assign)
        if isinstance(self, fsdp.FSDPModule):
            patch.reached()
            with torch.no_grad():
                for parameter, old in zip(self.parameters(), kept, strict=True):
                    parameter.copy_(old)
        return found


@fault(
    id="fs-direct-forward-gathers",
    symptom="A call of forward() that bypasses the hooks communicates all the same, behind the user's back.",
    capability="fully_shard",
    layer="l1",
    must_fail=["FS-1-05"],
    ranks="all",
)
def direct_forward_gathers(patch: Patch) -> None:
    @patch.around(f"{_OURS}.wrap:adopt", parameters=("module",))
    def adopt(original: Any, module: Any) -> None:
        original(module)
        plain = module.forward

        def forward(*args: Any, **kwargs: Any) -> Any:
            if module._get_fsdp_state()._training_state.name == "IDLE":
                patch.reached()
                module.unshard()
            return plain(*args, **kwargs)

        module.forward = forward


@fault(
    id="fs-forward-without-grad-keeps-full",
    symptom="Evaluation fills the memory: a forward under no_grad never frees what it gathered.",
    capability="fully_shard",
    layer="l1",
    must_fail=["FS-1-03", "FS-1-05", "FS-1-08"],
    ranks="all",
)
def forward_without_grad_keeps_full(patch: Patch) -> None:
    @patch.around(f"{_FSDP}._fsdp_param_group:FSDPParamGroup.reshard", parameters=("self",))
    def reshard(original: Any, self: Any) -> None:
        if self._training_state.name == "FORWARD" and not torch.is_grad_enabled():
            patch.reached()
            return
        original(self)

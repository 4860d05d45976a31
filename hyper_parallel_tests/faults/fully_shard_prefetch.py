"""Faults of fully_shard on torch_native: gathering ahead of time, and memory that is not given back."""

from __future__ import annotations

from typing import Any

import torch

from hyper_parallel_tests.faults import Patch, fault

_FSDP = "torch.distributed.fsdp._fully_shard"
_OURS = "hyper_parallel_tests.engines.torch_native.fully_shard"


def _do_not_read(patch: Patch, setter: str) -> None:
    @patch.around(f"{_OURS}.module:HSDPModule.{setter}", parameters=("self", "modules"))
    def write_only(_original: Any, self: Any, modules: Any) -> None:
        patch.reached()
        self.modules_to_prefetch = list(modules)


@fault(
    id="fs-forward-prefetch-not-read",
    symptom="set_modules_to_forward_prefetch is accepted and nothing overlaps.",
    capability="fully_shard",
    layer="l1",
    must_fail=["FS-1-06"],
    ranks="all",
)
def forward_prefetch_not_read(patch: Patch) -> None:
    _do_not_read(patch, "set_modules_to_forward_prefetch")


@fault(
    id="fs-backward-prefetch-not-read",
    symptom="set_modules_to_backward_prefetch is accepted and the engine's own order stays.",
    capability="fully_shard",
    layer="l1",
    must_fail=["FS-1-06"],
    ranks="all",
)
def backward_prefetch_not_read(patch: Patch) -> None:
    _do_not_read(patch, "set_modules_to_backward_prefetch")


@fault(
    id="fs-prefetch-in-reverse",
    symptom="Layers are gathered in the opposite order of the list: the one needed next comes last.",
    capability="fully_shard",
    layer="l1",
    must_fail=["FS-1-06"],
    ranks="all",
)
def prefetch_in_reverse(patch: Patch) -> None:
    @patch.around(f"{_OURS}.module:_wrapped", parameters=("modules",))
    def wrapped(original: Any, modules: Any) -> Any:
        checked = original(modules)
        if len(checked) > 1:
            patch.reached()
        return checked[::-1]


@fault(
    id="fs-prefetch-list-adds-up",
    symptom="Taking a prefetch setting back has no effect: all lists that were ever set stay in force.",
    capability="fully_shard",
    layer="l1",
    must_fail=["FS-1-06"],
    ranks="all",
)
def prefetch_list_adds_up(patch: Patch) -> None:
    @patch.around(f"{_OURS}.module:HSDPModule.set_modules_to_forward_prefetch", parameters=("self", "modules"))
    def set_modules(original: Any, self: Any, modules: Any) -> None:
        state = self._get_fsdp_state()
        before = list(state._states_to_forward_prefetch)
        original(self, modules)
        if before:
            patch.reached()
        state._states_to_forward_prefetch = before + state._states_to_forward_prefetch


@fault(
    id="fs-wrong-prefetch-list-ignored",
    symptom="A prefetch list with a typo or an unwrapped module is accepted and has no effect.",
    capability="fully_shard",
    layer="l1",
    must_fail=["FS-1-06"],
    ranks="all",
)
def wrong_prefetch_list_ignored(patch: Patch) -> None:
    @patch.around(f"{_OURS}.module:_wrapped", parameters=("modules",))
    def wrapped(original: Any, modules: Any) -> Any:
        try:
            right = [one for one in original(modules) if hasattr(one, "_get_fsdp_state")]
        except ValueError:
            patch.reached()
            return []
        if len(right) < len(modules):
            patch.reached()
        return right


@fault(
    id="fs-stale-prefetch",
    symptom="The loss lags behind: prefetched layers compute with the parameters of the step before.",
    capability="fully_shard",
    layer="l1",
    must_fail=["FS-1-06"],
    ranks="all",
)
def stale_prefetch(patch: Patch) -> None:
    first: dict[Any, torch.Tensor] = {}
    prefetched: set[Any] = set()

    group = f"{_FSDP}._fsdp_param_group"

    @patch.around(f"{group}:FSDPParamGroup._prefetch_unshard", parameters=("target_fsdp_param_group", "pass_type"))
    def prefetch(original: Any, target: Any, pass_type: str) -> None:
        prefetched.update(target.fsdp_params)
        original(target, pass_type)

    @patch.around(f"{group}:foreach_all_gather_copy_out", parameters=("all_gather_result", "fsdp_params", "group"))
    def copy_out(original: Any, all_gather_result: Any, fsdp_params: Any, group: Any) -> None:
        original(all_gather_result, fsdp_params, group)
        for parameter in prefetched & set(fsdp_params):
            (output,) = parameter.all_gather_outputs
            if parameter in first:
                patch.reached()
                output.data.copy_(first[parameter])
            first.setdefault(parameter, output.detach().clone())


@fault(
    id="fs-gathered-storage-not-freed",
    symptom="Memory grows as without sharding: modules show shards again, but the gathered copies stay.",
    capability="fully_shard",
    layer="l1",
    must_fail=["FS-1-08"],
    ranks="all",
)
def gathered_storage_not_freed(patch: Patch) -> None:
    target = f"{_FSDP}._fsdp_param:FSDPParam.free_unsharded_param"
    patch.replace(target, lambda _: lambda self: patch.reached(), parameters=("self",))


@fault(
    id="fs-message-buffers-kept",
    symptom="Memory grows by one gathered layer: the buffer of its message is never given back.",
    capability="fully_shard",
    layer="l1",
    must_fail=["FS-1-08"],
    ranks="all",
)
def message_buffers_kept(patch: Patch) -> None:
    kept: list[Any] = []

    @patch.around(f"{_FSDP}._fsdp_param_group:foreach_all_gather", parameters=("fsdp_params", "group"))
    def all_gather(original: Any, *args: Any, **kwargs: Any) -> Any:
        gathered = original(*args, **kwargs)
        patch.reached()
        kept.append(gathered)
        return gathered

"""Faults of fully_shard on torch_native: when parameters are gathered, resharded, and by which setting."""

from __future__ import annotations

from typing import Any

import torch

from hyper_parallel_tests.faults import Patch, fault

_FSDP = "torch.distributed.fsdp._fully_shard"
_OURS = "hyper_parallel_tests.engines.torch_native.fully_shard"


@fault(
    id="fs-reshard-flag-not-read",
    symptom="set_reshard_after_forward(False) is accepted and forward frees the parameters all the same.",
    capability="fully_shard",
    layer="l1",
    must_fail=["FSDP-L1-01"],
    ranks="all",
)
def reshard_flag_not_read(patch: Patch) -> None:
    @patch.around(
        f"{_OURS}.module:HSDPModule.set_reshard_after_forward", parameters=("self", "reshard_after_forward", "recurse")
    )
    def write_only(_: Any, self: Any, reshard_after_forward: bool, recurse: bool = True) -> None:
        patch.reached()
        self.reshard_after_forward = reshard_after_forward


@fault(
    id="fs-never-resharded",
    symptom="Memory grows with every layer: gathered parameters are never freed.",
    capability="fully_shard",
    layer="l1",
    must_fail=["FSDP-L1-01", "FSDP-L1-05", "FS-1-01", "FS-1-05", "FS-1-08"],
    ranks="all",
)
def never_resharded(patch: Patch) -> None:
    patch.replace(f"{_FSDP}._fsdp_param_group:FSDPParamGroup.reshard", lambda _: lambda self: patch.reached())


@fault(
    id="fs-stale-gathered-parameters",
    symptom="The loss stops improving after one step: forward computes with the parameters gathered first.",
    capability="fully_shard",
    layer="l1",
    must_fail=["FSDP-L1-01", "FSDP-L1-05", "FS-1-04", "FS-1-06", "FS-2-01"],
    ranks="all",
)
def stale_gathered_parameters(patch: Patch) -> None:
    first: dict[Any, torch.Tensor] = {}

    @patch.around(
        f"{_FSDP}._fsdp_param_group:foreach_all_gather_copy_out",
        parameters=("all_gather_result", "fsdp_params", "group"),
    )
    def copy_out(original: Any, all_gather_result: Any, fsdp_params: Any, group: Any) -> None:
        original(all_gather_result, fsdp_params, group)
        for parameter in fsdp_params:
            (output,) = parameter.all_gather_outputs
            if parameter in first:
                patch.reached()
                output.data.copy_(first[parameter])
            first.setdefault(parameter, output.detach().clone())


@fault(
    id="fs-unshard-handle-does-not-wait",
    symptom="After an asynchronous unshard the parameters are shards still, or half written.",
    capability="fully_shard",
    layer="l1",
    must_fail=["FSDP-L1-05"],
    ranks="all",
)
def unshard_handle_does_not_wait(patch: Patch) -> None:
    patch.replace(f"{_FSDP}._fully_shard:_UnshardHandleImpl.wait", lambda _: lambda self: patch.reached())


@fault(
    id="fs-keyword-inputs-do-not-gather",
    symptom="A module called with keyword inputs only computes with its shard.",
    capability="fully_shard",
    layer="l1",
    must_fail=["FS-1-01"],
    ranks="all",
)
def keyword_inputs_do_not_gather(patch: Patch) -> None:
    @patch.around(
        f"{_FSDP}._fsdp_param_group:FSDPParamGroup.pre_forward", parameters=("self", "module", "args", "kwargs")
    )
    def pre_forward(original: Any, self: Any, module: Any, args: Any, kwargs: Any) -> Any:
        if args:
            return original(self, module, args, kwargs)
        patch.reached()
        return args, kwargs


@fault(
    id="fs-reshard-before-user-hooks",
    symptom="A user's forward hook that reads the weight finds a shard.",
    capability="fully_shard",
    layer="l1",
    must_fail=["FS-1-01"],
    ranks="all",
)
def reshard_before_user_hooks(patch: Patch) -> None:
    @patch.around(f"{_FSDP}._fsdp_state:FSDPState.init", parameters=("self", "modules"))
    def init(original: Any, self: Any, modules: Any, *args: Any) -> None:
        original(self, modules, *args)
        patch.reached()
        self._post_forward_hook_handle.remove()
        self._post_forward_hook_handle = modules[0].register_forward_hook(self._post_forward, prepend=True)


@fault(
    id="fs-gather-skipped-on-one-rank",
    symptom="Training hangs: one rank believes that its parameters are gathered and goes on without.",
    capability="fully_shard",
    layer="l2",
    must_fail=["FS-2-01"],
    applied_on=[1],
    watchdog=5,
)
def gather_skipped_on_one_rank(patch: Patch) -> None:
    @patch.around(
        f"{_FSDP}._fsdp_collectives:DefaultAllGather.__call__",
        parameters=("self", "output_tensor", "input_tensor", "group", "async_op"),
    )
    def all_gather(_: Any, *args: Any, **kwargs: Any) -> None:
        patch.reached()


@fault(
    id="fs-flags-not-checked",
    symptom="A setter takes a string or a number for a flag and keeps it as a truth value of some kind.",
    capability="fully_shard",
    layer="l1",
    must_fail=["FSDP-L1-01", "FSDP-L1-02", "FS-1-03"],
    ranks="all",
)
def flags_not_checked(patch: Patch) -> None:
    @patch.around(f"{_OURS}.module:_flag", parameters=("name", "value"))
    def flag(_: Any, name: str, value: Any) -> Any:
        patch.reached()
        return value


@fault(
    id="fs-reshard-after-backward-flag-not-read",
    symptom="set_reshard_after_backward(False) saves nothing: each micro-step gathers all parameters anew.",
    capability="fully_shard",
    layer="l1",
    must_fail=["FSDP-L1-01"],
    ranks="all",
)
def reshard_after_backward_flag_not_read(patch: Patch) -> None:
    @patch.around(
        f"{_OURS}.module:HSDPModule.set_reshard_after_backward",
        parameters=("self", "reshard_after_backward", "recurse"),
    )
    def write_only(_: Any, self: Any, reshard_after_backward: bool, recurse: bool = True) -> None:
        patch.reached()
        self.reshard_after_backward = reshard_after_backward


@fault(
    id="fs-reshard-argument-not-read",
    symptom="fully_shard(reshard_after_forward=False) gathers for backward all the same.",
    capability="fully_shard",
    layer="l1",
    must_fail=["FSDP-L1-01"],
    ranks="all",
)
def reshard_argument_not_read(patch: Patch) -> None:
    @patch.around(f"{_OURS}:fully_shard", parameters=("module",))
    def fully_shard(original: Any, module: Any, **options: Any) -> Any:
        if options.get("reshard_after_forward") is False:
            patch.reached()
            del options["reshard_after_forward"]
        return original(module, **options)


@fault(
    id="fs-reshard-group-not-read",
    symptom="reshard_after_forward=8 is taken for True: backward gathers over the slow links between machines.",
    capability="fully_shard",
    layer="l1",
    must_fail=["FS-1-10"],
    ranks="all",
)
def reshard_group_not_read(patch: Patch) -> None:
    @patch.around(
        f"{_FSDP}._fully_shard:_get_post_forward_mesh_info", parameters=("reshard_after_forward", "mesh_info")
    )
    def mesh_info(original: Any, reshard_after_forward: bool | int, mesh_info: Any) -> Any:
        if not isinstance(reshard_after_forward, bool):
            patch.reached()
        return original(bool(reshard_after_forward), mesh_info)

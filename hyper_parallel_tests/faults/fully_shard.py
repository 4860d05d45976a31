"""Faults of fully_shard on torch_native: what a call manages and how, its policies, names and nesting."""

from __future__ import annotations

from typing import Any

from hyper_parallel_tests.faults import Patch, fault

_FSDP = "torch.distributed.fsdp._fully_shard"
_OURS = "hyper_parallel_tests.engines.torch_native.fully_shard"


@fault(
    id="fs-second-name-of-shared-parameter-forgotten",
    symptom="Tied weights drift apart: under its second name the parameter stays a shard, or a stale copy.",
    capability="fully_shard",
    layer="l0",
    must_fail=["FS-0-01"],
)
def second_name_of_shared_parameter_forgotten(patch: Patch) -> None:
    @patch.around(f"{_FSDP}._fsdp_param:FSDPParam._setattr_on_modules", parameters=("self", "param"))
    def set_on_modules(original: Any, self: Any, parameter: Any) -> None:
        if parameter is self.sharded_param or not self._module_info.shared_modules:
            return original(self, parameter)
        patch.reached()
        return setattr(self._module_info.module, self._module_info.param_name, parameter)


@fault(
    id="fs-ignored-params-not-ignored",
    symptom="Parameters that were to be left alone are sharded, and the code that uses them breaks.",
    capability="fully_shard",
    layer="l0",
    must_fail=["FS-0-01", "FSDP-L1-06"],
    ranks="all",
)
def ignored_params_not_ignored(patch: Patch) -> None:
    @patch.around(f"{_FSDP}._fully_shard:_get_modules_and_states", parameters=("module", "device", "ignored_params"))
    def states(original: Any, module: Any, device: Any, ignored_params: Any) -> Any:
        if ignored_params:
            patch.reached()
        return original(module, device, set())


@fault(
    id="fs-comm-fusion-flag-not-read",
    symptom="comm_fusion=False changes nothing: small parameters wait for the whole layer's message.",
    capability="fully_shard",
    layer="l0",
    must_fail=["FS-0-01", "FSDP-L1-08"],
    ranks="all",
)
def comm_fusion_flag_not_read(patch: Patch) -> None:
    patch.replace(f"{_OURS}.wrap:_communicate_per_parameter", lambda _: lambda module: patch.reached())


@fault(
    id="fs-replicated-params-sharded",
    symptom="replicate_params is accepted and ignored: small parameters are sharded and gathered each step.",
    capability="fully_shard",
    layer="l0",
    must_fail=["FS-0-01", "FS-0-02", "FSDP-L1-07", "FSDP-L3-04", "FSDP-L3-06"],
    ranks="all",
)
def replicated_params_sharded(patch: Patch) -> None:
    @patch.around(f"{_OURS}.placement:Placements.__call__", parameters=("self", "parameter"))
    def place(original: Any, self: Any, parameter: Any) -> Any:
        placement = original(self, parameter)
        if hasattr(placement, "mesh_info"):
            patch.reached()
            return placement.placement
        return placement


@fault(
    id="fs-remainder-rows-dropped",
    symptom="Rows beyond a multiple of the number of ranks keep no owner and stop training.",
    capability="fully_shard",
    layer="l0",
    must_fail=["FS-0-02"],
)
def remainder_rows_dropped(patch: Patch) -> None:
    @patch.around(f"{_FSDP}._fsdp_param:_chunk_with_empty", parameters=("tensor", "num_chunks", "dim"))
    def chunks(original: Any, tensor: Any, num_chunks: int, dim: int) -> Any:
        rows = tensor.size(dim) // num_chunks
        if rows * num_chunks == tensor.size(dim):
            return original(tensor, num_chunks, dim)
        patch.reached()
        return [tensor.narrow(dim, rank * rows, rows) for rank in range(num_chunks)]


@fault(
    id="fs-short-shards-not-padded",
    symptom="At odd sizes the rank with the short last shard sends less than others expect: hang or crash.",
    capability="fully_shard",
    layer="l0",
    must_fail=["FS-0-02"],
)
def short_shards_not_padded(patch: Patch) -> None:
    @patch.around(f"{_FSDP}._fsdp_param:FSDPParam._init_sharded_param", parameters=("self", "param", "device"))
    def init(original: Any, self: Any, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        if self.padded_sharded_param_size != self.sharded_size:
            patch.reached()
            self.padded_sharded_param_size = self.sharded_size
            self._sharded_param_data = self._sharded_param_data[: self.sharded_size.numel()]


@fault(
    id="fs-placement-dim-not-read",
    symptom="shard_placement_fn is called and its answer ignored: everything is divided on dimension 0.",
    capability="fully_shard",
    layer="l0",
    must_fail=["FS-0-02", "FSDP-L1-07"],
    ranks="all",
)
def placement_dim_not_read(patch: Patch) -> None:
    @patch.around(f"{_FSDP}._fsdp_param:resolve_shard_placement", parameters=("result", "default_mesh_info"))
    def resolve(original: Any, result: Any, default_mesh_info: Any) -> Any:
        resolved = original(result, default_mesh_info)
        if getattr(resolved.placement, "dim", 0) != 0:
            patch.reached()
            resolved.placement = None
        return resolved


@fault(
    id="fs-contradictory-policy-accepted",
    symptom="A policy that contradicts itself trains silently in lower precision than it promises.",
    capability="fully_shard",
    layer="l0",
    must_fail=["FS-0-03"],
)
def contradictory_policy_accepted(patch: Patch) -> None:
    patch.replace(f"{_OURS}.policies:MixedPrecisionPolicy.__post_init__", lambda _: lambda self: patch.reached())


@fault(
    id="fs-wrapper-prefix-in-state-dict",
    symptom="Checkpoints of wrapped and unwrapped models have different keys and cannot be exchanged.",
    capability="fully_shard",
    layer="l0",
    must_fail=["FS-0-04"],
)
def wrapper_prefix_in_state_dict(patch: Patch) -> None:
    @patch.around("torch.nn:Module.state_dict", parameters=("self",))
    def state_dict(original: Any, self: Any, *args: Any, **kwargs: Any) -> Any:
        found = original(self, *args, **kwargs)
        if kwargs or not type(self).__name__.startswith("HSDP"):
            return found
        patch.reached()
        return {f"_wrapped_module.{name}": value for name, value in found.items()}


@fault(
    id="fs-second-wrap-ignored",
    symptom="A second call with another mesh or policy returns as if it had worked, and has no effect.",
    capability="fully_shard",
    layer="l0",
    must_fail=["FS-0-05"],
)
def second_wrap_ignored(patch: Patch) -> None:
    @patch.around(f"{_OURS}:fully_shard", parameters=("module",))
    def fully_shard(original: Any, module: Any, **options: Any) -> Any:
        if type(module).__name__.startswith("HSDP"):
            patch.reached()
            return module
        return original(module, **options)


@fault(
    id="fs-list-controlled-as-one",
    symptom="Modules of a list cannot be controlled apart: gathering one gathers all.",
    capability="fully_shard",
    layer="l0",
    must_fail=["FS-0-01", "FSDP-L1-09"],
    ranks="all",
)
def list_controlled_as_one(patch: Patch) -> None:
    @patch.around(f"{_OURS}.wrap:_independent_units", parameters=("modules",))
    def one_unit(_: Any, modules: Any) -> Any:
        if len(modules) > 1:
            patch.reached()
        return [modules]


@fault(
    id="fs-list-returns-a-module",
    symptom="Code that unpacks what fully_shard of a list returns gets one module of it.",
    capability="fully_shard",
    layer="l1",
    must_fail=["FSDP-L1-09"],
    ranks="all",
)
def list_returns_a_module(patch: Patch) -> None:
    @patch.around(f"{_OURS}:fully_shard", parameters=("module",))
    def fully_shard(original: Any, module: Any, **options: Any) -> Any:
        returned = original(module, **options)
        if isinstance(returned, list):
            patch.reached()
            return returned[0]
        return returned


@fault(
    id="fs-container-accepted",
    symptom="A ModuleList is wrapped without complaint, and its parameters are never gathered.",
    capability="fully_shard",
    layer="l0",
    must_fail=["FS-0-05"],
)
def container_accepted(patch: Patch) -> None:
    patch.replace(f"{_FSDP}._fully_shard:_validate_module", lambda _: lambda *args: patch.reached())


@fault(
    id="fs-late-root-accepted",
    symptom="A child that ran before its root keeps a communication state of its own, without an error.",
    capability="fully_shard",
    layer="l0",
    must_fail=["FS-0-05"],
)
def late_root_accepted(patch: Patch) -> None:
    @patch.around(f"{_FSDP}._fsdp_state:FSDPState._lazy_init", parameters=("self",))
    def lazy_init(original: Any, self: Any) -> None:
        for child in self._modules[0].modules():
            state = self._get_state_for_module(child)
            if self._is_root is None and state is not None and state._is_root:
                patch.reached()
                state._is_root = None
        original(self)

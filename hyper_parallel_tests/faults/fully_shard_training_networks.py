"""Faults of fully_shard on torch_native that show in real networks: replicas, reuse, borders between trees."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh
from torch.utils._pytree import tree_map_only

from hyper_parallel_tests.faults import Patch, fault

_FSDP = "torch.distributed.fsdp._fully_shard"
_OURS = "hyper_parallel_tests.engines.torch_native"


@fault(
    id="fs-hybrid-mesh-transposed",
    symptom="Shards lie across replicas instead of inside them: the slow links carry every gather.",
    capability="fully_shard",
    layer="l2",
    must_fail=["FS-2-02"],
)
def hybrid_mesh_transposed(patch: Patch) -> None:
    @patch.around(f"{_FSDP}._fully_shard:_get_mesh_info", parameters=("mesh", "dp_mesh_dims"))
    def mesh_info(original: Any, mesh: Any, dp_mesh_dims: Any = None) -> Any:
        found = original(mesh, dp_mesh_dims)
        if mesh.ndim == 1:
            return found
        patch.reached()
        return type(found)(mesh, shard_mesh_dim=0, replicate_mesh_dim=1)


@fault(
    id="fs-no-mesh-is-no-world",
    symptom="Without a mesh nothing is sharded or reduced: every rank trains a whole network on its own rows.",
    capability="fully_shard",
    layer="l2",
    must_fail=["FS-2-02"],
    ranks="all",
)
def no_mesh_is_no_world(patch: Patch) -> None:
    @patch.around(f"{_OURS}.fully_shard.wrap:_world_mesh")
    def own_mesh(original: Any) -> Any:
        patch.reached()
        alone = dist.new_group([dist.get_rank()], use_local_synchronization=True)
        return DeviceMesh.from_group(alone, original().device_type)


@fault(
    id="fs-update-not-gathered",
    symptom="Step 0 is right, and every later loss is step 0's model's: updates do not reach the forward.",
    capability="fully_shard",
    layer="l2",
    must_fail=["FSDP-L3-02"],
    ranks="all",
)
def update_not_gathered(patch: Patch) -> None:
    sent: dict[Any, list[torch.Tensor]] = {}

    def make(original: Any) -> Any:
        def all_gather_inputs(self: Any) -> list[torch.Tensor]:
            now = original.fget(self)
            if self in sent:
                patch.reached()
            return sent.setdefault(self, [one.clone() for one in now])

        return property(all_gather_inputs)

    patch.replace(f"{_FSDP}._fsdp_param:FSDPParam.all_gather_inputs", make)


@fault(
    id="fs-one-use-of-several-trained",
    symptom="A layer that runs several times in a forward gets the gradient of its first use only.",
    capability="fully_shard",
    layer="l2",
    must_fail=["FSDP-L3-05", "FS-2-05"],
    ranks="all",
)
def one_use_of_several_trained(patch: Patch) -> None:
    @patch.around(
        f"{_FSDP}._fsdp_param_group:FSDPParamGroup.pre_forward", parameters=("self", "module", "args", "kwargs")
    )
    def pre_forward(original: Any, self: Any, module: Any, args: Any, kwargs: Any) -> Any:
        args, kwargs = original(self, module, args, kwargs)
        # One index a forward that waits for its backward.
        if self._post_forward_indices:
            patch.reached()
            for parameter in self.fsdp_params:
                parameter._setattr_on_modules(torch.nn.Parameter(parameter.unsharded_param.detach(), False))
        return args, kwargs


@fault(
    id="fs-tied-weight-trains-by-one-name",
    symptom="The output layer that shares the embedding's weight sends no gradient to it.",
    capability="fully_shard",
    layer="l2",
    must_fail=["FSDP-L3-02", "FS-2-05"],
    ranks="all",
)
def tied_weight_trains_by_one_name(patch: Patch) -> None:
    @patch.around(f"{_FSDP}._fsdp_param:FSDPParam._setattr_on_modules", parameters=("self", "param"))
    def set_on_modules(original: Any, self: Any, param: Any) -> None:
        original(self, param)
        info = self._module_info
        if param is self.sharded_param or not info.shared_modules:
            return
        patch.reached()
        for module, name in zip(info.shared_modules, info.shared_param_names, strict=True):
            module._parameters[name] = torch.nn.Parameter(param.detach(), requires_grad=False)


@fault(
    id="fs-gradient-cut-between-trees",
    symptom="What comes before a wrapped network stops training: no gradient leaves through its inputs.",
    capability="fully_shard",
    layer="l2",
    must_fail=["FSDP-L3-06"],
    ranks="all",
)
def gradient_cut_between_trees(patch: Patch) -> None:
    def cut(tensor: torch.Tensor) -> torch.Tensor:
        if tensor.requires_grad:
            patch.reached()
        return tensor.detach()

    @patch.around(
        f"{_FSDP}._fsdp_param_group:FSDPParamGroup.pre_forward", parameters=("self", "module", "args", "kwargs")
    )
    def pre_forward(original: Any, self: Any, module: Any, args: Any, kwargs: Any) -> Any:
        args, kwargs = original(self, module, args, kwargs)
        return args, tree_map_only(torch.Tensor, cut, kwargs)

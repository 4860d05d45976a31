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

# Positions of the arguments of FSDP2's foreach_reduce that the faults change.
_REDUCE_SCATTER_GROUP, _ALL_REDUCE_GROUP = 2, 9
_FOREACH_REDUCE = (
    "fsdp_params",
    "unsharded_grads",
    "reduce_scatter_group",
    "reduce_scatter_stream",
    "reduce_scatter_comm",
    "orig_dtype",
    "reduce_dtype",
    "device",
    "gradient_divide_factor",
    "all_reduce_group",
)


def _change_reduction(patch: Patch, change: Any) -> None:
    """Has `change` alter the list of foreach_reduce's arguments where it says True."""

    @patch.around(f"{_FSDP}._fsdp_param_group:foreach_reduce", parameters=_FOREACH_REDUCE)
    def foreach_reduce(original: Any, *args: Any) -> Any:
        args = list(args)
        if change(args):
            patch.reached()
        return original(*args)


@fault(
    id="fs-replicas-train-apart",
    symptom="On a hybrid mesh each replica trains on its own rows: their parameters drift apart.",
    capability="fully_shard",
    layer="l2",
    must_fail=["FSDP-L3-01", "FS-2-02"],
    ranks="all",
)
def replicas_train_apart(patch: Patch) -> None:
    def change(args: list[Any]) -> bool:
        sharded = args[_REDUCE_SCATTER_GROUP] is not None and args[_REDUCE_SCATTER_GROUP].size() > 1
        skipped = sharded and args[_ALL_REDUCE_GROUP] is not None
        if skipped:
            args[_ALL_REDUCE_GROUP] = None
        return skipped

    _change_reduction(patch, change)


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
    id="fs-whole-parameters-train-apart",
    symptom="Parameters that are kept whole differ between ranks after one step, and nothing says so.",
    capability="fully_shard",
    layer="l2",
    must_fail=["FSDP-L3-04"],
    ranks="all",
)
def whole_parameters_train_apart(patch: Patch) -> None:
    def change(args: list[Any]) -> bool:
        whole = args[_REDUCE_SCATTER_GROUP].size() == 1 and args[_ALL_REDUCE_GROUP] is not None
        if whole:
            args[_ALL_REDUCE_GROUP] = None
        return whole

    _change_reduction(patch, change)


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

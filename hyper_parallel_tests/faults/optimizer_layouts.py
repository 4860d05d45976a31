"""Faults of optimizers on torch_native: parameters divided over two dimensions of a mesh, and state from another."""

from __future__ import annotations

from typing import Any

from torch import Tensor
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor

from hyper_parallel_tests.faults import Patch, fault

_OURS = "hyper_parallel_tests.engines.torch_native.optimizer"
_MUON = f"{_OURS}.muon"


@fault(
    id="op-first-mesh-dimension-left-out",
    symptom="With tensor parallelism and sharding together, Muon orthogonalises blocks of rows.",
    capability="optimizer",
    layer="l2",
    must_fail=["OP-2-01"],
    ranks="all",
)
def first_mesh_dimension_left_out(patch: Patch) -> None:
    @patch.around(f"{_MUON}:orthogonalised", parameters=("direction", "ns_steps"))
    def orthogonalised(original: Any, direction: Tensor, ns_steps: int) -> Tensor:
        if not isinstance(direction, DTensor) or direction.placements != (Shard(0), Shard(1)):
            return original(direction, ns_steps)
        patch.reached()
        rows = direction.redistribute(placements=(Shard(0), Replicate()))
        own = rows.to_local()
        found = original(own, ns_steps).to(own.dtype) if own.numel() else own
        layout = {"shape": direction.shape, "stride": direction.stride()}
        whole = DTensor.from_local(found, rows.device_mesh, rows.placements, run_check=False, **layout)
        return whole.redistribute(placements=direction.placements)


@fault(
    id="op-strides-of-shards-forgotten",
    symptom="With tensor parallelism and sharding of the same rows, ranks step their rows by those of others.",
    capability="optimizer",
    layer="l2",
    must_fail=["OP-2-01"],
)
def strides_of_shards_forgotten(patch: Patch) -> None:
    @patch.around(f"{_MUON}:laid_out_as", parameters=("like", "value"))
    def laid_out(original: Any, like: Tensor, value: Tensor) -> Tensor:
        if not isinstance(like, DTensor) or like.placements[0] in (Shard(0), Shard(1), Replicate()):
            return original(like, value)
        patch.reached()
        plain = [Shard(one.dim) if hasattr(one, "split_factor") else one for one in like.placements]
        return distribute_tensor(value.contiguous(), like.device_mesh, plain, src_data_rank=None)


@fault(
    id="op-state-moved-by-order",
    symptom="After a resume in another layout, averages are those of other elements.",
    capability="optimizer",
    layer="l2",
    must_fail=["OP-2-01"],
)
def state_moved_by_order(patch: Patch) -> None:
    @patch.around(f"{_OURS}.chain:_Reader._value", parameters=("self", "key", "parameter"))
    def value(original: Any, self: Any, key: str, parameter: Any) -> Any:
        loaded, given = original(self, key, parameter), self._flat[key]
        if isinstance(loaded, DTensor) and isinstance(given, DTensor):
            own, theirs = loaded.to_local(), given.to_local()
            if own.shape != theirs.shape and own.numel() == theirs.numel():
                patch.reached()
                own.copy_(theirs.reshape(own.shape))
        return loaded

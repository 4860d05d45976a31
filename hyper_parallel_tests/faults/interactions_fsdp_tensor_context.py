"""Faults that show only where attention is divided by heads and by its sequence and sharded too, on torch_native."""

from __future__ import annotations

from typing import Any

from hyper_parallel_tests.faults import Patch, fault


@fault(
    id="ix-divided-heads-averaged-over-rows-alone",
    symptom="Divided heads take steps that are too large: sums over rows and tokens are divided by the rows' ranks.",
    capability="fully_shard",
    layer="l3",
    must_fail=["IX-14"],
    ranks="all",
)
def divided_heads_averaged_over_rows_alone(patch: Patch) -> None:
    @patch.around(
        "torch.distributed.fsdp._fully_shard._fsdp_param:FSDPParam._get_grad_inner_tensor", parameters=("self", "grad")
    )
    def inner(original: Any, self: Any, grad: Any) -> Any:
        found, shards = original(self, grad), self.mesh_info.mesh
        root = shards._get_root_mesh()
        # Of one dimension that the mesh of all ranks has not: rows and sequence are one in it.
        if not self.is_dtensor or set(shards.mesh_dim_names) <= set(root.mesh_dim_names):
            return found
        patch.reached()
        return found * root["cp"].size()

"""Faults that show only where experts divided over ranks and by their width are sharded too, on torch_native."""

from __future__ import annotations

from typing import Any

import torch.distributed as dist

from hyper_parallel_tests.faults import Patch, fault

_PARAM = "torch.distributed.fsdp._fully_shard._fsdp_param:FSDPParam"


@fault(
    id="ix-parts-of-widths-summed",
    symptom="Parts of an expert's width grow alike: the gradient of each is the sum of all.",
    capability="fully_shard",
    layer="l3",
    must_fail=["IX-17"],
    ranks="all",
)
def parts_of_widths_summed(patch: Patch) -> None:
    @patch.around(f"{_PARAM}._get_grad_inner_tensor", parameters=("self", "grad"))
    def inner(original: Any, self: Any, grad: Any) -> Any:
        found = original(self, grad)
        if not self.is_dtensor or self._unsharded_dtensor_spec.mesh.mesh_dim_names != ("ep", "tp"):
            return found
        patch.reached()
        total = found.contiguous().clone()
        dist.all_reduce(total, group=self._unsharded_dtensor_spec.mesh.get_group("tp"))
        return total

"""Faults that show only where stages of a pipeline are sharded, on torch_native."""

from __future__ import annotations

from typing import Any

from torch.distributed.fsdp import FSDPModule

from hyper_parallel_tests.faults import Patch, fault


@fault(
    id="ix-averaged-between-stages",
    symptom="Sharded stages before the last learn too slowly: what comes back to them is divided by the shards too.",
    capability="pipeline_parallel",
    layer="l3",
    must_fail=["FSDP-L2-09"],
    ranks="any",
)
def averaged_between_stages(patch: Patch) -> None:
    @patch.around(
        "torch.distributed.pipelining.stage:_PipelineStageBase.backward_maybe_with_nosync",
        parameters=("self", "backward_type"),
    )
    def backward(original: Any, self: Any, *args: Any, **kwargs: Any) -> Any:
        gradients, groups = original(self, *args, **kwargs)
        if not isinstance(self.submod, FSDPModule):
            return gradients, groups
        patch.reached()
        shards = self.submod._get_fsdp_state()._fsdp_param_groups[0].mesh_info.mesh.size()
        return tuple(None if one is None else one / shards for one in gradients), groups

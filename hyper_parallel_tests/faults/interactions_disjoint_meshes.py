"""Faults that show only where parts of a model are sharded over meshes of their own, on torch_native."""

from __future__ import annotations

import inspect
from typing import Any

import torch.distributed as dist

from hyper_parallel_tests.faults import Patch, fault


@fault(
    id="ix-second-mesh-sums",
    symptom="Of two parts on disjoint cards the second learns too fast: its gradients are summed over its cards.",
    capability="fully_shard",
    layer="l3",
    must_fail=["IX-23"],
    ranks="any",
)
def second_mesh_sums(patch: Patch) -> None:
    @patch.around(
        "torch.distributed.fsdp._fully_shard._fsdp_param_group:foreach_reduce",
        parameters=("fsdp_params", "unsharded_grads", "reduce_scatter_group"),
    )
    def foreach_reduce(original: Any, *args: Any, **kwargs: Any) -> Any:
        call = inspect.signature(original).bind(*args, **kwargs)
        given = call.arguments
        ranks = dist.get_process_group_ranks(given["reduce_scatter_group"])
        # The groups of shards that are replicated do not have rank 0 either.
        if given["all_reduce_group"] is None and 0 not in ranks:
            patch.reached()
            given["unsharded_grads"] = [one * len(ranks) for one in given["unsharded_grads"]]
        return original(*call.args, **call.kwargs)

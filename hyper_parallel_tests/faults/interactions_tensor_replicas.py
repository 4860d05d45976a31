"""Faults that show only where layers divided by tensor parallelism are sharded and replicated, on torch_native."""

from __future__ import annotations

import inspect
from typing import Any

from hyper_parallel_tests.faults import Patch, fault


@fault(
    id="ix-divided-layers-not-summed-over-replicas",
    symptom="Replicas drift apart in the layers that are divided: their gradients are summed over the shards alone.",
    capability="fully_shard",
    layer="l3",
    must_fail=["IX-21"],
    ranks="all",
)
def divided_layers_not_summed_over_replicas(patch: Patch) -> None:
    @patch.around(
        "torch.distributed.fsdp._fully_shard._fsdp_param_group:foreach_reduce",
        parameters=("fsdp_params", "unsharded_grads"),
    )
    def foreach_reduce(original: Any, *args: Any, **kwargs: Any) -> Any:
        call = inspect.signature(original).bind(*args, **kwargs)
        if call.arguments["all_reduce_group"] is not None and any(one.is_dtensor for one in args[0]):
            patch.reached()
            call.arguments["all_reduce_group"] = None
        return original(*call.args, **call.kwargs)

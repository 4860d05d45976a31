"""Faults that show only where stages of a pipeline are divided by tensor parallelism and sharded, on torch_native."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch.distributed.fsdp import FSDPModule

from hyper_parallel_tests.faults import Patch, fault

_BACKWARD = "torch.distributed.pipelining.stage:_PipelineStageBase.backward_maybe_with_nosync"


def _divided_units(stage: Any) -> Iterator[Any]:
    """The units of a stage's sharding in which tensor parallelism has divided parameters."""
    for module in stage.submod.modules():
        if isinstance(module, FSDPModule):
            for group in module._get_fsdp_state()._fsdp_param_groups:
                if any(one.is_dtensor for one in group.fsdp_params):
                    yield group


@fault(
    id="ix-last-micro-batch-of-divided-layers",
    symptom="Divided and sharded stages learn from the last micro-batch of each step alone.",
    capability="fully_shard",
    layer="l3",
    must_fail=["IX-13"],
    ranks="all",
)
def last_micro_batch_of_divided_layers(patch: Patch) -> None:
    @patch.around(_BACKWARD, parameters=("self", "backward_type"))
    def backward(original: Any, self: Any, *args: Any, **kwargs: Any) -> Any:
        for param in (one for group in _divided_units(self) for one in group.fsdp_params):
            if hasattr(param, "_unsharded_param") and param.unsharded_param.grad is not None:
                patch.reached()
                param.unsharded_param.grad = None
        return original(self, *args, **kwargs)


@fault(
    id="ix-divided-layers-reduced-by-micro-batch",
    symptom="Divided and sharded stages send as many gradients as there are micro-batches, which costs time alone.",
    capability="pipeline_parallel",
    layer="l3",
    must_fail=["IX-13"],
    ranks="all",
)
def divided_layers_reduced_by_micro_batch(patch: Patch) -> None:
    @patch.around(_BACKWARD, parameters=("self", "backward_type"))
    def backward(original: Any, self: Any, *args: Any, **kwargs: Any) -> Any:
        found = original(self, *args, **kwargs)
        for group in _divided_units(self):
            patch.reached()
            group.reduce_grads = True
            group.post_backward()
            group.finalize_backward()
        return found

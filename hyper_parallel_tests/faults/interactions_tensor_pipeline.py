"""Faults that show only where layers divided by tensor parallelism are stages of a pipeline, on torch_native."""

from __future__ import annotations

from typing import Any

from torch.distributed.tensor import DTensor

from hyper_parallel_tests.faults import Patch, fault


@fault(
    id="ix-parts-summed-each-micro-batch",
    symptom="Norms on own tokens learn too fast: what micro-batches add up is summed over ranks after each of them.",
    capability="pipeline_parallel",
    layer="l3",
    must_fail=["IX-04"],
    ranks="all",
)
def parts_summed_each_micro_batch(patch: Patch) -> None:
    @patch.around(
        "torch.distributed.pipelining.stage:_PipelineStageBase.backward_one_chunk", parameters=("self", "bwd_chunk_id")
    )
    def backward(original: Any, self: Any, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        for one in self.submod.parameters():
            grad = one.grad
            if isinstance(grad, DTensor) and any(place.is_partial() for place in grad.placements):
                patch.reached()
                one.grad = DTensor.from_local(grad.full_tensor(), grad.device_mesh, grad.placements, run_check=False)

"""Faults of pipelines on torch_native: backward in two parts, and layers that are recomputed."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import torch

from hyper_parallel_tests.faults import Patch, fault

_STAGE = "torch.distributed.pipelining.stage"
_CHECKPOINT = "torch.utils.checkpoint"


@fault(
    id="pp-weights-of-a-micro-batch-dropped",
    symptom="With zero bubbles training differs a little: the weights do not learn from one of the micro-batches.",
    capability="pipeline_parallel",
    layer="l2",
    must_fail=["PP-2-02"],
    ranks="all",
)
def weights_of_a_micro_batch_dropped(patch: Patch) -> None:
    @patch.around(f"{_STAGE}:_PipelineStageBase.backward_weight_one_chunk", parameters=("self", "bwd_chunk_id"))
    def backward(original: Any, self: Any, bwd_chunk_id: int, last_backward: bool = False) -> None:
        if bwd_chunk_id == 1:
            patch.reached()
            self.backward_state.pop(bwd_chunk_id)
            self.dw_runner.pop(bwd_chunk_id)
        else:
            original(self, bwd_chunk_id, last_backward)


@fault(
    id="pp-some-weights-left-out",
    symptom="With zero bubbles some layers of each stage but the first learn nothing at all.",
    capability="pipeline_parallel",
    layer="l2",
    must_fail=["PP-2-02"],
)
def some_weights_left_out(patch: Patch) -> None:
    @patch.around(f"{_STAGE}:stage_backward_weight", parameters=("weights", "param_groups"))
    def backward(original: Any, weights: Any, param_groups: Any, retain_graph: bool = False) -> Any:
        if len(param_groups) > 1:
            patch.reached()
        return original(weights, param_groups[:1], retain_graph)


@fault(
    id="pp-recomputes-the-first-micro-batch",
    symptom="With recomputation the gradients are off: each micro-batch is recomputed from the first one's inputs.",
    capability="pipeline_parallel",
    layer="l2",
    must_fail=["PP-2-03"],
    ranks="all",
)
def recomputes_the_first_micro_batch(patch: Patch) -> None:
    first: dict[tuple[int, ...], tuple[Any, ...]] = {}
    patch.at_the_end(first.clear)

    @patch.around(f"{_CHECKPOINT}:_CheckpointFrame.__init__", parameters=("self", "recompute_fn"))
    def make(original: Any, self: Any, recompute_fn: Any, *rest: Any) -> None:
        def recompute(*args: Any) -> None:
            key = tuple(one.shape for one in args if isinstance(one, torch.Tensor))
            if key in first:
                patch.reached()
            recompute_fn(*first.setdefault(key, args))

        original(self, recompute, *rest)


@fault(
    id="pp-nothing-recomputed",
    symptom="Recomputation saves no memory in a pipeline: the activations of all layers are kept.",
    capability="pipeline_parallel",
    layer="l2",
    must_fail=["PP-2-03"],
    ranks="all",
)
def nothing_recomputed(patch: Patch) -> None:
    @patch.around(f"{_CHECKPOINT}:_checkpoint_hook", parameters=("frame",))
    def hook(original: Any, frame: Any) -> Any:
        patch.reached()
        return nullcontext()

"""Faults of pipelines on torch_native: orders, boundaries, memory of finished micro-batches, overlap."""

from __future__ import annotations

from functools import partial
from typing import Any
from unittest import mock

import torch

from hyper_parallel_tests.faults import Patch, fault

_OURS = "hyper_parallel_tests.engines.torch_native.pipeline_parallel"
_SCHEDULES = "torch.distributed.pipelining.schedules"
_STAGE = "torch.distributed.pipelining.stage"


@fault(
    id="pp-sends-out-of-order",
    symptom="Micro-batches are mixed up: under GPipe a stage computes the second one where the first is due.",
    capability="pipeline_parallel",
    layer="l1",
    must_fail=["PP-1-01"],
)
def sends_out_of_order(patch: Patch) -> None:
    held: list[Any] = []
    patch.at_the_end(held.clear)

    @patch.around(f"{_SCHEDULES}:_batch_p2p", parameters=("p2p_ops", "desc"))
    def start(original: Any, p2p_ops: list[Any], desc: str | None = None) -> Any:
        if desc != "fwd_send" or not p2p_ops:
            return original(p2p_ops, desc)
        if not held:
            held.append(p2p_ops)
            return []
        patch.reached()
        return original(p2p_ops, desc) + original(held.pop(), desc)


@fault(
    id="pp-weights-after-all-others",
    symptom="A zero-bubble schedule needs the memory of all micro-batches: weights get their gradients at the end.",
    capability="pipeline_parallel",
    layer="l1",
    must_fail=["PP-1-01"],
    ranks="all",
)
def weights_after_all_others(patch: Patch) -> None:
    @patch.around(f"{_SCHEDULES}:_PipelineScheduleRuntime._step_microbatches", parameters=("self", "arg_mbs"))
    def run(original: Any, self: Any, *args: Any, **options: Any) -> Any:
        order = self.pipeline_order_with_comms[self.rank]
        late = [one for one in order if one.computation_type.name == "BACKWARD_WEIGHT"]
        if late:
            patch.reached()
        ends = [one for one in order if one.computation_type.name == "REDUCE_GRAD"]
        changed = [one for one in order if one not in late and one not in ends] + late + ends
        with mock.patch.dict(self.pipeline_order_with_comms, {self.rank: changed}):
            return original(self, *args, **options)


@fault(
    id="pp-activations-kept",
    symptom="A pipeline runs out of memory with many micro-batches: what is finished is not released.",
    capability="pipeline_parallel",
    layer="l1",
    must_fail=["PP-1-02"],
    ranks="all",
)
def activations_kept(patch: Patch) -> None:
    kept: list[Any] = []
    patch.at_the_end(kept.clear)

    @patch.around(f"{_STAGE}:stage_backward", parameters=("stage_output", "output_grads", "input_values"))
    def backward(original: Any, stage_output: Any, output_grads: Any, input_values: Any, *rest: Any) -> Any:
        patch.reached()
        kept.append(torch.utils._pytree.tree_map(lambda one: one.view_as(one), stage_output))
        retained = partial(torch.autograd.backward, retain_graph=True)
        with mock.patch.object(torch.autograd, "backward", retained):
            return original(stage_output, output_grads, input_values, *rest)


@fault(
    id="pp-gradient-of-another-micro-batch",
    symptom="The loss goes down too slowly: a stage's outputs get the gradient of another micro-batch's.",
    capability="pipeline_parallel",
    layer="l1",
    must_fail=["PP-1-02"],
)
def gradient_of_another_micro_batch(patch: Patch) -> None:
    @patch.around(f"{_STAGE}:_PipelineStageBase._retrieve_recv_grads", parameters=("self", "bwd_chunk_id"))
    def gradients(original: Any, self: Any, bwd_chunk_id: int) -> Any:
        if bwd_chunk_id:
            patch.reached()
        return original(self, 0)


@fault(
    id="pp-overlap-without-effect",
    symptom="overlap_p2p makes nothing faster: receives start when they are needed, as without it.",
    capability="pipeline_parallel",
    layer="l1",
    must_fail=["PP-1-04"],
    ranks="all",
)
def overlap_without_effect(patch: Patch) -> None:
    @patch.around(f"{_OURS}.schedules:_Schedule.__init__", parameters=("self", "stages", "micro_batch_num"))
    def make(original: Any, self: Any, *args: Any, overlap_p2p: bool | None = None, **options: Any) -> None:
        if overlap_p2p:
            patch.reached()
        original(self, *args, overlap_p2p=False, **options)

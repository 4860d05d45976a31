"""Faults of pipelines on torch_native: backward in two parts, recomputed layers, several cards, other shapes."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import torch

from hyper_parallel_tests.faults import Patch, fault

_OURS = "hyper_parallel_tests.engines.torch_native.pipeline_parallel"
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


@fault(
    id="pp-cards-learn-apart",
    symptom="The cards of one stage drift apart: each learns from its own rows.",
    capability="pipeline_parallel",
    layer="l2",
    must_fail=["PP-2-04"],
)
def cards_learn_apart(patch: Patch) -> None:
    @patch.around(f"{_OURS}.across:ScheduleAcrossMeshes._sum_over_cards", parameters=("self", "own"))
    def add(original: Any, self: Any, own: Any) -> Any:
        if len(self._stages[self._stage]) > 1:
            patch.reached()
        return own.clone()


@fault(
    id="pp-targets-of-another-micro-batch-on-meshes",
    symptom="With stages on meshes the loss does not go down: targets belong to another micro-batch.",
    capability="pipeline_parallel",
    layer="l2",
    must_fail=["PP-2-04"],
    ranks="all",
)
def rows_of_another_micro_batch(patch: Patch) -> None:
    @patch.around(f"{_OURS}.across:ScheduleAcrossMeshes._own_parts", parameters=("self", "values", "micro"))
    def parts(original: Any, self: Any, values: Any, micro: int) -> Any:
        if self._is_last and self._stage and values:
            patch.reached()
            micro = self._micro_batch_num - 1 - micro
        return original(self, values, micro)


@fault(
    id="pp-no-gradient-between-meshes",
    symptom="Of an encoder and a decoder on disjoint meshes the encoder does not learn: zeros come back.",
    capability="pipeline_parallel",
    layer="l2",
    must_fail=["PP-2-04"],
)
def no_gradient_between_meshes(patch: Patch) -> None:
    @patch.around(f"{_OURS}.across:ScheduleAcrossMeshes._send", parameters=("self", "part", "rows", "stage"))
    def send(original: Any, self: Any, part: Any, rows: int, stage: int) -> None:
        if stage < self._stage:
            patch.reached()
            part = torch.zeros_like(part)
        original(self, part, rows, stage)


@fault(
    id="pp-meshes-forget-earlier-gradients",
    symptom="Accumulation over runs has no effect with stages on meshes: only the last run's gradients are left.",
    capability="pipeline_parallel",
    layer="l2",
    must_fail=["PP-2-04"],
    ranks="all",
)
def meshes_forget_earlier_gradients(patch: Patch) -> None:
    @patch.around(f"{_OURS}.across:ScheduleAcrossMeshes._sum_gradients", parameters=("self", "earlier"))
    def add(original: Any, self: Any, earlier: list[Any]) -> None:
        patch.reached()
        original(self, [None] * len(earlier))


@fault(
    id="pp-error-of-one-card-on-meshes",
    symptom="A stage on meshes raises and its rank ends with an error, while the others go on without its rows.",
    capability="pipeline_parallel",
    layer="l2",
    must_fail=["PP-2-04"],
    watchdog=8,
)
def error_of_one_card_on_meshes(patch: Patch) -> None:
    @patch.around(f"{_OURS}.across:raise_failures", parameters=("failures", "group"))
    def raise_own(original: Any, failures: Any, group: Any) -> None:
        if failures:
            patch.reached()
            raise RuntimeError(failures[0].line()) from failures[0].error


@fault(
    id="pp-shapes-of-the-first-run",
    symptom="Stages for shapes that change take those of the first run for all others: the next one ends in an error.",
    capability="pipeline_parallel",
    layer="l2",
    must_fail=["PP-2-01"],
    watchdog=8,
)
def shapes_of_the_first_run(patch: Patch) -> None:
    @patch.around(f"{_OURS}.schedules:_Schedule._prepare_anew", parameters=("self",))
    def prepare(original: Any, self: Any) -> None:
        patch.reached()

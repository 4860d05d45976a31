"""Faults of pipelines on torch_native: stages of different numbers of cards."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch

from hyper_parallel_tests.faults import Patch, fault

_OURS = "hyper_parallel_tests.engines.torch_native.pipeline_parallel"


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
    id="pp-rows-become-float32-between-meshes",
    symptom="Stages on meshes lose precision, or end in an error, where a model computes in another type than float32.",
    capability="pipeline_parallel",
    layer="l2",
    must_fail=["PP-2-04"],
)
def rows_become_float32_between_meshes(patch: Patch) -> None:
    @patch.around(f"{_OURS}.across:ScheduleAcrossMeshes._received", parameters=("self", "rows", "stage"))
    def received(original: Any, self: Any, *args: Any) -> Any:
        found = original(self, *args)
        if found is None or found.dtype == torch.float32:
            return found
        patch.reached()
        return found.detach().float().requires_grad_(found.requires_grad)


@fault(
    id="pp-frozen-encoder-ends-the-run",
    symptom="A frozen encoder before a decoder on another mesh ends each run with an error about gradients.",
    capability="pipeline_parallel",
    layer="l2",
    must_fail=["PP-2-04"],
)
def frozen_encoder_ends_the_run(patch: Patch) -> None:
    @patch.around(f"{_OURS}.across:ScheduleAcrossMeshes._backward", parameters=("self", "given", "output"))
    def backward(original: Any, self: Any, given: Any, output: Any, *where: int) -> None:
        if output is not None and not output.requires_grad:
            patch.reached()
            output = SimpleNamespace(requires_grad=True, backward=output.backward)
        original(self, given, output, *where)

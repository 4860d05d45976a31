"""Faults of expert parallelism on torch_native: the fused path, and transfers beside the computation."""

from __future__ import annotations

from typing import Any

import torch

from hyper_parallel_tests.faults import Patch, fault

_OURS = "hyper_parallel_tests.engines.torch_native.expert_parallel"


@fault(
    id="ep-fused-gate-and-up-swapped",
    symptom="A model trained by the composed path gives noise by the fused one.",
    capability="expert_parallel",
    layer="l2",
    must_fail=["EP-2-02"],
    ranks="all",
)
def gate_and_up_swapped(patch: Patch) -> None:
    @patch.around(f"{_OURS}.styles:fused_experts", parameters=("rows", "counts", "gate", "up", "down"))
    def fused(original: Any, rows: Any, counts: Any, gate: Any, up: Any, *others: Any, **options: Any) -> Any:
        patch.reached()
        return original(rows, counts, up, gate, *others, **options)


@fault(
    id="ep-fused-rows-read-before-they-arrive",
    symptom="With the fused path the loss differs by run, and more so the slower the network is.",
    capability="expert_parallel",
    layer="l2",
    must_fail=["EP-2-02"],
    ranks="all",
)
def rows_read_before_they_arrive(patch: Patch) -> None:
    @patch.around(f"{_OURS}.fused:_UnderWay.wait", parameters=("self",))
    def wait(original: Any, self: Any) -> Any:
        patch.reached()
        # What stands in the buffer before anything has arrived, made the same in each run.
        return torch.zeros_like(original(self))


@fault(
    id="ep-fused-weight-gradients-of-other-rows",
    symptom="By the fused path the first loss is right and the experts do not learn.",
    capability="expert_parallel",
    layer="l2",
    must_fail=["EP-2-02"],
)
def weight_gradients_of_other_rows(patch: Patch) -> None:
    @patch.around(f"{_OURS}.fused:_products", parameters=("outputs", "inputs", "counts"))
    def products(original: Any, outputs: Any, inputs: Any, counts: Any) -> Any:
        patch.reached()
        return original(outputs, inputs.roll(1, 0), counts)


@fault(
    id="ep-grouped-gemm-skips-empty-experts",
    symptom="When an expert gets no token, those behind it multiply with its matrix.",
    capability="expert_parallel",
    layer="l2",
    must_fail=["EP-2-02"],
)
def grouped_gemm_skips_empty_experts(patch: Patch) -> None:
    @patch.around(f"{_OURS}.fused:grouped_mm", parameters=("rows", "weights", "counts"))
    def multiply(original: Any, rows: Any, weights: Any, counts: Any) -> Any:
        if (counts == 0).any():
            patch.reached()
        return original(rows, weights, torch.cat((counts[counts > 0], counts[counts == 0])))


@fault(
    id="ep-chunks-wait-at-once",
    symptom="Chunks of experts are not faster than one: each transfer is waited for as it starts.",
    capability="expert_parallel",
    layer="l2",
    must_fail=["EP-2-02"],
    ranks="all",
)
def chunks_wait_at_once(patch: Patch) -> None:
    @patch.around(f"{_OURS}.fused:_UnderWay.__init__", parameters=("self", "rows", "received", "sent", "exchange"))
    def begin(original: Any, self: Any, *args: Any) -> None:
        original(self, *args)
        patch.reached()
        self.wait()


@fault(
    id="ep-late-combine-waits-at-once",
    symptom="The shared expert does not run beside the rows' way back.",
    capability="expert_parallel",
    layer="l2",
    must_fail=["EP-2-02"],
    watchdog=5,
)
def late_combine_waits_at_once(patch: Patch) -> None:
    @patch.around(f"{_OURS}.styles:send_back", parameters=("rows", "dispatch"))
    def send_back(original: Any, rows: Any, dispatch: Any) -> Any:
        patch.reached()
        return original(rows, dispatch).wait()


@fault(
    id="ep-shared-expert-waits-for-the-rows",
    symptom="Combining late gains nothing: the shared expert begins when the rows are back.",
    capability="expert_parallel",
    layer="l2",
    must_fail=["EP-2-02"],
    watchdog=5,
)
def shared_expert_waits_for_the_rows(patch: Patch) -> None:
    @patch.around(f"{_OURS}.layer:MoE.forward", parameters=("self", "hidden"))
    def forward(original: Any, self: Any, hidden: Any) -> Any:
        shared, self.shared = self.shared, None
        if shared is not None:
            patch.reached()
        try:
            output = original(self, hidden)
        finally:
            self.shared = shared
        return output if shared is None else output + shared(hidden)


@fault(
    id="ep-grouped-gemm-is-not-used",
    symptom="A layer set to grouped GEMM still launches three small products for each of its experts.",
    capability="expert_parallel",
    layer="l2",
    must_fail=["EP-2-02"],
    ranks="all",
)
def grouped_gemm_is_not_used(patch: Patch) -> None:
    @patch.around(f"{_OURS}.experts:GroupedExperts.__init__", parameters=("self", "dim", "hidden_dim", "num_experts"))
    def make(original: Any, self: Any, dim: int, hidden_dim: int, num_experts: int, grouped: bool = False) -> None:
        original(self, dim, hidden_dim, num_experts)
        if grouped:
            patch.reached()

"""Faults of pipeline balancing on torch_native: cuts that are not the best, do not fit, or are no cuts."""

from __future__ import annotations

import math
from typing import Any

from hyper_parallel_tests.faults import Patch, fault

_OURS = "hyper_parallel_tests.engines.torch_native.pipeline_balancing"


@fault(
    id="balance-greedy",
    symptom="The last stage is the slowest: layers are taken until a stage has its share.",
    capability="pipeline_balancing",
    layer="l0",
    must_fail=["AP-0-01"],
)
def greedy(patch: Patch) -> None:
    @patch.around(f"{_OURS}:lightest_cut", parameters=("cost", "layers", "stages"))
    def cut(original: Any, cost: Any, layers: int, stages: int) -> Any:
        best = original(cost, layers, stages)
        share = cost(0, 0, layers) / stages
        if best is None or not math.isfinite(share):
            return best
        bounds, first = [0], 0
        for stage in range(stages - 1):
            end = first + 1
            while layers - end > stages - 1 - stage and cost(stage, first, end + 1) <= share:
                end += 1
            bounds.append(end)
            first = end
        patch.reached()
        return tuple(range(*one) for one in zip(bounds, [*bounds[1:], layers], strict=True))


@fault(
    id="balance-equal-numbers",
    symptom="Every stage has as many layers, whatever they cost.",
    capability="pipeline_balancing",
    layer="l0",
    must_fail=["AP-0-01"],
)
def equal_numbers(patch: Patch) -> None:
    @patch.around(f"{_OURS}:lightest_cut", parameters=("cost", "layers", "stages"))
    def cut(_: Any, cost: Any, layers: int, stages: int) -> Any:
        patch.reached()
        return tuple(range(layers * place // stages, layers * (place + 1) // stages) for place in range(stages))


@fault(
    id="balance-boundary-off-by-one",
    symptom="The last layer of the model is in no stage.",
    capability="pipeline_balancing",
    layer="l0",
    must_fail=["AP-0-01"],
)
def boundary_off_by_one(patch: Patch) -> None:
    @patch.around(f"{_OURS}:lightest_cut", parameters=("cost", "layers", "stages"))
    def cut(original: Any, cost: Any, layers: int, stages: int) -> Any:
        found = original(cost, layers, stages)
        if found is None or len(found[-1]) < 2:
            return found
        patch.reached()
        return *found[:-1], range(found[-1].start, found[-1].stop - 1)


@fault(
    id="balance-layer-in-two-stages",
    symptom="A layer on a boundary is in both stages and runs twice.",
    capability="pipeline_balancing",
    layer="l0",
    must_fail=["AP-0-01"],
)
def layer_in_two_stages(patch: Patch) -> None:
    @patch.around(f"{_OURS}:lightest_cut", parameters=("cost", "layers", "stages"))
    def cut(original: Any, cost: Any, layers: int, stages: int) -> Any:
        found = original(cost, layers, stages)
        if found is None or stages < 2:
            return found
        patch.reached()
        return *found[:-1], range(found[-1].start - 1, found[-1].stop)


@fault(
    id="balance-limit-ignored-on-the-last-stage",
    symptom="The last stage, with the head, runs out of memory in a cut that was said to fit.",
    capability="pipeline_balancing",
    layer="l0",
    must_fail=["AP-0-01"],
)
def limit_ignored_on_the_last_stage(patch: Patch) -> None:
    @patch.around(f"{_OURS}:_limits", parameters=("memory_limit", "num_stages"))
    def limits(original: Any, memory_limit: Any, num_stages: int) -> Any:
        found = original(memory_limit, num_stages)
        if found is not None:
            patch.reached()
            found[-1] = 1 << 60
        return found


@fault(
    id="balance-one-micro-batch-in-flight",
    symptom="The first stages run out of memory: activations of one micro-batch are in the balance.",
    capability="pipeline_balancing",
    layer="l0",
    must_fail=["AP-0-01"],
)
def one_micro_batch_in_flight(patch: Patch) -> None:
    @patch.around(f"{_OURS}:micro_batches_in_flight", parameters=("num_stages", "micro_batches"))
    def held(_: Any, num_stages: int, micro_batches: int) -> tuple[int, ...]:
        patch.reached()
        return (1,) * num_stages


@fault(
    id="balance-infeasible-gives-the-fastest",
    symptom="Where nothing fits, a cut comes back as if it did.",
    capability="pipeline_balancing",
    layer="l0",
    must_fail=["AP-0-01"],
)
def infeasible_gives_the_fastest(patch: Patch) -> None:
    @patch.around(f"{_OURS}:lightest_cut", parameters=("cost", "layers", "stages"))
    def cut(original: Any, cost: Any, layers: int, stages: int) -> Any:
        found = original(cost, layers, stages)
        if found is not None:
            return found
        patch.reached()
        return original(lambda *_: 0, layers, stages)


@fault(
    id="balance-bubble-left-out",
    symptom="The estimated step is too short: the slowest stage counts once, whatever the number of micro-batches.",
    capability="pipeline_balancing",
    layer="l0",
    must_fail=["AP-0-01"],
)
def bubble_left_out(patch: Patch) -> None:
    @patch.around(f"{_OURS}:step_time", parameters=("times", "micro_batches"))
    def step(original: Any, times: Any, micro_batches: int) -> float:
        patch.reached()
        return original(times, 1)


@fault(
    id="balance-negative-times-accepted",
    symptom="A mistyped profile gives a cut without a word.",
    capability="pipeline_balancing",
    layer="l0",
    must_fail=["AP-0-01"],
)
def negative_times_accepted(patch: Patch) -> None:
    @patch.around(f"{_OURS}:_check_layers", parameters=("layers", "num_stages", "micro_batches"))
    def check(original: Any, layers: Any, num_stages: int, micro_batches: int) -> None:
        if any(one.time < 0 for one in layers):
            patch.reached()
            return
        original(layers, num_stages, micro_batches)


@fault(
    id="balance-sums-in-order",
    symptom="Equal stages are told apart by the order in which their times are added.",
    capability="pipeline_balancing",
    layer="l0",
    must_fail=["AP-0-01"],
)
def sums_in_order(patch: Patch) -> None:
    class Plain:
        inf, isfinite = math.inf, math.isfinite

        @staticmethod
        def fsum(values: Any) -> float:
            patch.reached()
            return float(sum(values))

    patch.replace(f"{_OURS}:math", lambda _: Plain)

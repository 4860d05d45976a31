"""Faults of pipelines on torch_native: parameters that several stages have."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from hyper_parallel_tests.faults import Patch, fault

_OURS = "hyper_parallel_tests.engines.torch_native.pipeline_parallel"
_GATHER = f"{_OURS}.shared:SharedParameters._of_all_stages"


@fault(
    id="pp-copies-learn-apart",
    symptom="A tied embedding and its output drift apart: neither stage has the other's gradient.",
    capability="pipeline_parallel",
    layer="l1",
    must_fail=["PP-1-03"],
    ranks="all",
)
def copies_learn_apart(patch: Patch) -> None:
    _summed(patch, lambda original, self: None)


@fault(
    id="pp-copies-summed-twice",
    symptom="Tied weights take steps that are too large: the sum of their gradients is summed again.",
    capability="pipeline_parallel",
    layer="l1",
    must_fail=["PP-1-03"],
    ranks="all",
)
def copies_summed_twice(patch: Patch) -> None:
    def twice(original: Callable[[Any], None], self: Any) -> None:
        original(self)
        original(self)

    _summed(patch, twice)


def _summed(patch: Patch, instead: Callable[[Callable[[Any], None], Any], None]) -> None:
    @patch.around(f"{_OURS}.shared:SharedParameters.sum_gradients", parameters=("self",))
    def add(original: Any, self: Any) -> None:
        if self._copies:
            patch.reached()
        instead(original, self)


@fault(
    id="pp-earlier-sum-summed-again",
    symptom="With accumulation over runs tied weights learn too fast: each run sums what the runs before have summed.",
    capability="pipeline_parallel",
    layer="l1",
    must_fail=["PP-1-03"],
    ranks="all",
)
def earlier_sum_summed_again(patch: Patch) -> None:
    @patch.around(f"{_OURS}.shared:SharedParameters.set_aside", parameters=("self",))
    def keep(original: Any, self: Any) -> None:
        self._earlier = [None] * len(self._parameters())
        if any(one.grad is not None for one in self._parameters()):
            patch.reached()


@fault(
    id="pp-copies-start-apart",
    symptom="The loss is NaN from the start, or a random one: the last stage's copy of a tied weight has other values.",
    capability="pipeline_parallel",
    layer="l1",
    must_fail=["PP-1-03"],
)
def copies_start_apart(patch: Patch) -> None:
    @patch.around(f"{_OURS}.shared:SharedParameters.take_values_of_the_first", parameters=("self",))
    def take(original: Any, self: Any) -> None:
        if self._copies:
            patch.reached()


@fault(
    id="pp-two-copies-taken-for-one",
    symptom="Of two weights that the same stages share, one is not tied: it starts at random and drifts.",
    capability="pipeline_parallel",
    layer="l1",
    must_fail=["PP-1-03"],
)
def two_copies_taken_for_one(patch: Patch) -> None:
    @patch.around(f"{_OURS}.shared:SharedParameters.__init__", parameters=("self", "stages"))
    def make(original: Any, self: Any, *args: Any) -> None:
        original(self, *args)
        for key in [key for key in self._copies if key[1]]:
            patch.reached()
            del self._copies[key]


@fault(
    id="pp-sum-of-two-copies-alone",
    symptom="A weight that three stages share does not learn from what the one between does with it.",
    capability="pipeline_parallel",
    layer="l1",
    must_fail=["PP-1-03"],
)
def sum_of_two_copies_alone(patch: Patch) -> None:
    @patch.around(_GATHER, parameters=("self", "stages", "own"))
    def gather(original: Any, self: Any, stages: Any, own: Any) -> Any:
        first, *between, last = original(self, stages, own)
        if between:
            patch.reached()
        return [first, *(torch.zeros_like(one) for one in between), last]


@fault(
    id="pp-values-of-the-lowest-stage",
    symptom="Shared weights start with the values of another stage than the one that was named first.",
    capability="pipeline_parallel",
    layer="l1",
    must_fail=["PP-1-03"],
)
def values_of_the_lowest_stage(patch: Patch) -> None:
    @patch.around(_GATHER, parameters=("self", "stages", "own"))
    def gather(original: Any, self: Any, stages: Any, own: Any) -> Any:
        found = original(self, stages, own)
        lowest = stages.index(min(stages))
        if lowest:
            patch.reached()
            found[0], found[lowest] = found[lowest], found[0]
        return found


@fault(
    id="pp-one-parameter-of-two-stages-counted-twice",
    symptom="A weight that two stages of one rank have as one parameter takes steps that are too large.",
    capability="pipeline_parallel",
    layer="l1",
    must_fail=["PP-1-03"],
)
def one_parameter_of_two_stages_counted_twice(patch: Patch) -> None:
    @patch.around(_GATHER, parameters=("self", "stages", "own"))
    def gather(original: Any, self: Any, stages: Any, own: Any) -> Any:
        held = {index: one for copies in self._copies.values() for index, one in copies.items()}
        for index, given in own.items():
            if held[index].grad is not None and not given.any():
                patch.reached()
                own[index] = held[index].grad
        return original(self, stages, own)


@fault(
    id="pp-unused-copy-gets-no-gradient",
    symptom="A stage that does not use its copy of a shared weight keeps an old one, and drifts from the others.",
    capability="pipeline_parallel",
    layer="l1",
    must_fail=["PP-1-03"],
)
def unused_copy_gets_no_gradient(patch: Patch) -> None:
    def without(original: Callable[[Any], None], self: Any) -> None:
        unused = [one for one in self._parameters() if one.grad is None and one.requires_grad]
        original(self)
        for one in unused:
            one.grad = None

    _summed(patch, without)

"""Faults of asynchronous tensor parallelism on torch_native: parts and sums that go round the ranks."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from torch import Tensor

from hyper_parallel_tests.faults import Patch, fault

_RING = "hyper_parallel_tests.engines.torch_native.async_tensor_parallel:_Ring"


@fault(
    id="tp-async-part-of-the-neighbour",
    symptom="With async tensor parallelism tokens get each other's activations: gathered parts are one place off.",
    capability="tensor_parallel",
    layer="l2",
    must_fail=["TP-2-02"],
    ranks="all",
)
def part_of_the_neighbour(patch: Patch) -> None:
    @patch.around(f"{_RING}.parts", parameters=("self", "own"))
    def parts(original: Any, self: Any, own: Tensor) -> Iterator[tuple[int, Tensor]]:
        for source, part in original(self, own):
            patch.reached()
            yield (source + 1) % self.size, part


@fault(
    id="tp-async-last-term-dropped",
    symptom="With async tensor parallelism the loss is off from the first step: each sum lacks one rank's term.",
    capability="tensor_parallel",
    layer="l2",
    must_fail=["TP-2-02"],
    ranks="all",
)
def last_term_dropped(patch: Patch) -> None:
    @patch.around(f"{_RING}.sum", parameters=("self", "term"))
    def total(original: Any, self: Any, term: Callable[[int], Tensor]) -> Tensor:
        patch.reached()
        return original(self, lambda rank: term(rank) * (rank != self.rank))


@fault(
    id="tp-async-waits-at-once",
    symptom="With async tensor parallelism the step is no shorter: each transfer is waited for before the product.",
    capability="tensor_parallel",
    layer="l2",
    must_fail=["TP-2-02"],
    watchdog=5,
)
def waits_at_once(patch: Patch) -> None:
    @patch.around(f"{_RING}.start", parameters=("self", "sent"))
    def start(original: Any, self: Any, sent: Tensor) -> tuple[Tensor, list[Any]]:
        arriving, handles = original(self, sent)
        patch.reached()
        for handle in handles:
            handle.wait()
        return arriving, []

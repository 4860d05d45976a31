"""Faults of the plan search on torch_native: plans that are wrong, missing, or in an order of their own."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from hyper_parallel_tests.faults import Patch, fault

_OURS = "hyper_parallel_tests.engines.torch_native.auto_parallel"
_SEARCH = f"{_OURS}.search"


def _hash(plan: Any) -> int:
    """An order that says nothing of a plan, such as that of a set."""
    return hash(tuple(sorted(plan.degrees.items(), key=lambda item: hash((item[1], len(item[0])))))) * 2654435761 % 97


@fault(
    id="search-plan-does-not-multiply",
    symptom="A plan leaves ranks without work, or asks for more than there are.",
    capability="auto_parallel",
    layer="l0",
    must_fail=["AP-0-02"],
)
def plan_does_not_multiply(patch: Patch) -> None:
    @patch.around(f"{_SEARCH}:candidates", parameters=("world_size", "degrees", "fixed"))
    def candidates(original: Any, world_size: int, degrees: Any, fixed: Any) -> Any:
        for one in original(world_size, degrees, fixed):
            if one["dp"] % 2 == 0:
                patch.reached()
                one["dp"] //= 2
            yield one


@fault(
    id="search-ties-by-hash",
    symptom="Ranks choose other plans, and another run another one: ties fall as a set is ordered.",
    capability="auto_parallel",
    layer="l0",
    must_fail=["AP-0-02"],
)
def ties_by_hash(patch: Patch) -> None:
    @patch.around(f"{_SEARCH}:order", parameters=("plan",))
    def order(_: Any, plan: Any) -> Any:
        patch.reached()
        return plan.time, _hash(plan)


@fault(
    id="search-memory-ignored",
    symptom="The fastest plan is proposed although it does not fit.",
    capability="auto_parallel",
    layer="l0",
    must_fail=["AP-0-02"],
)
def memory_ignored(patch: Patch) -> None:
    @patch.around(f"{_OURS}:search_plans", parameters=("workload", "world_size"))
    def search(original: Any, workload: Any, world_size: int, *, memory_limit: int, **options: Any) -> Any:
        if memory_limit > 0:
            patch.reached()
            memory_limit = 1 << 60
        return original(workload, world_size, memory_limit=memory_limit, **options)


@fault(
    id="search-least-memory-first",
    symptom="The first plan is the leanest and not the fastest.",
    capability="auto_parallel",
    layer="l0",
    must_fail=["AP-0-02"],
)
def least_memory_first(patch: Patch) -> None:
    @patch.around(f"{_SEARCH}:order", parameters=("plan",))
    def order(original: Any, plan: Any) -> Any:
        patch.reached()
        return plan.memory, original(plan)


@fault(
    id="search-unrunnable-proposed",
    symptom="A plan is proposed whose tensor parallelism does not divide the heads.",
    capability="auto_parallel",
    layer="l0",
    must_fail=["AP-0-02"],
)
def unrunnable_proposed(patch: Patch) -> None:
    _not_in_the_way(patch, "heads")


def _not_in_the_way(patch: Patch, what: str) -> None:
    """Has degrees run that an obstacle of this name forbids."""
    for module in (_SEARCH, f"{_OURS}.costs"):

        @patch.around(f"{module}:obstacle", parameters=("workload", "degrees"))
        def obstacle(original: Any, workload: Any, degrees: Any) -> str:
            found = original(workload, degrees)
            if what not in found:
                return found
            patch.reached()
            return ""


@fault(
    id="search-odd-worlds-left-out",
    symptom="On 6 cards plans are missing: only powers of two are tried.",
    capability="auto_parallel",
    layer="l0",
    must_fail=["AP-0-02"],
)
def odd_worlds_left_out(patch: Patch) -> None:
    @patch.around(f"{_SEARCH}:candidates", parameters=("world_size", "degrees", "fixed"))
    def candidates(original: Any, world_size: int, degrees: Any, fixed: Any) -> Any:
        for one in original(world_size, degrees, fixed):
            if any(degree & (degree - 1) for degree in one.values()):
                patch.reached()
                continue
            yield one


@fault(
    id="search-unknown-degrees-accepted",
    symptom="A mistyped degree is ignored, and the search is over the others.",
    capability="auto_parallel",
    layer="l0",
    must_fail=["AP-0-02"],
)
def unknown_degrees_accepted(patch: Patch) -> None:
    for module in (_SEARCH, f"{_OURS}.costs"):

        @patch.around(f"{module}:check_names", parameters=("names",))
        def check(original: Any, names: Any) -> None:
            if not set(names) <= {"pp", "dp", "fsdp", "tp"}:
                patch.reached()


@fault(
    id="search-given-degrees-left-free",
    symptom="A degree that the user gave is another one in the plan.",
    capability="auto_parallel",
    layer="l0",
    must_fail=["AP-0-02"],
)
def given_degrees_left_free(patch: Patch) -> None:
    @patch.around(f"{_SEARCH}:candidates", parameters=("world_size", "degrees", "fixed"))
    def candidates(original: Any, world_size: int, degrees: Any, fixed: Any) -> Any:
        if fixed:
            patch.reached()
        return original(world_size, degrees, {})


@fault(
    id="search-feed-forward-need-not-divide",
    symptom="A plan is proposed whose tensor parallelism does not divide the feed-forward.",
    capability="auto_parallel",
    layer="l0",
    must_fail=["AP-0-02"],
)
def feed_forward_need_not_divide(patch: Patch) -> None:
    _not_in_the_way(patch, "ffn=")


@fault(
    id="search-error-says-nothing",
    symptom="Every plan fits its estimate: the error that it states is nine tenths.",
    capability="auto_parallel",
    layer="l0",
    must_fail=["AP-0-02"],
)
def error_says_nothing(patch: Patch) -> None:
    @patch.around(f"{_SEARCH}:estimate_plan", parameters=("workload", "degrees"))
    def estimate(original: Any, workload: Any, degrees: Any) -> Any:
        patch.reached()
        return replace(original(workload, degrees), memory_error=0.9)


@fault(
    id="search-degrees-rounded",
    symptom="A degree of 2.5 from a configuration file is 2 without a word.",
    capability="auto_parallel",
    layer="l0",
    must_fail=["AP-0-02"],
)
def degrees_rounded(patch: Patch) -> None:
    @patch.around(f"{_OURS}.costs:complete", parameters=("degrees",))
    def complete(original: Any, degrees: Any) -> Any:
        whole = {name: int(degree) for name, degree in degrees.items()}
        if any(type(degree) is not int for degree in degrees.values()):
            patch.reached()
        return original(whole)

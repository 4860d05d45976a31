"""Demonstration faults: some are caught, the others must not count, each for a reason of its own."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Sequence
from typing import Any

from hyper_parallel_tests.faults import Patch, fault

CALCULATOR = "hyper_parallel_tests.harness.tests.programs.calculator"

_Install = Callable[[Patch], None]


def demo(id: str, must_fail: Sequence[str] = ("DEMO-SUM",), **more: Any) -> Callable[[_Install], _Install]:
    """Declare a demonstration fault."""
    return fault(id=id, symptom="A sum is wrong.", capability="demo", layer="l1", must_fail=must_fail, **more)


def break_total(patch: Patch, wrong: Callable[[Sequence[int]], int]) -> None:
    """Have sums of more than one number computed by `wrong`."""

    def make(total: Callable[[Sequence[int]], int]) -> Callable[[Sequence[int]], int]:
        def broken(numbers: Sequence[int]) -> int:
            if len(numbers) == 1:
                return total(numbers)
            patch.reached()
            return wrong(numbers)

        return broken

    patch.replace(f"{CALCULATOR}:total", make, parameters=("numbers",))


@demo("demo-off-by-one", ranks="all")
def off_by_one(patch: Patch) -> None:
    break_total(patch, lambda numbers: sum(numbers) + 1)


@demo("demo-hang", watchdog=2, ranks=[1], applied_on=[1])
def hang(patch: Patch) -> None:
    def wrong(numbers: Sequence[int]) -> int:
        while True:
            pass

    break_total(patch, wrong)


@demo("demo-crash", ranks=[1], applied_on=[1])
def crash(patch: Patch) -> None:
    def wrong(numbers: Sequence[int]) -> int:
        os.kill(os.getpid(), signal.SIGKILL)
        return 0

    break_total(patch, wrong)


@demo("demo-harmless")
def harmless(patch: Patch) -> None:
    break_total(patch, sum)


@demo("demo-other-exception")
def other_exception(patch: Patch) -> None:
    def wrong(numbers: Sequence[int]) -> int:
        raise KeyError("the sum is missing")

    break_total(patch, wrong)


@demo("demo-silent")
def silent(patch: Patch) -> None:
    patch.replace(f"{CALCULATOR}:total", lambda total: lambda numbers: 0)


@demo("demo-wrong-contract", must_fail=["DEMO-SUM", "DEMO-PRODUCT"])
def wrong_contract(patch: Patch) -> None:
    break_total(patch, lambda numbers: 0)


@demo("demo-wrong-rank", ranks="all", applied_on=[1])
def wrong_rank(patch: Patch) -> None:
    break_total(patch, lambda numbers: 0)


@demo("demo-does-not-fit")
def does_not_fit(patch: Patch) -> None:
    patch.replace(f"{CALCULATOR}:total", lambda total: total, parameters=("values",))


@demo("demo-breaks-collection")
def breaks_collection(patch: Patch) -> None:
    patch.replace(f"{CALCULATOR}:NUMBERS", lambda numbers: 1 // 0)


@demo("demo-changes-collection")
def changes_collection(patch: Patch) -> None:
    patch.replace(f"{CALCULATOR}:NUMBERS", lambda numbers: "other numbers")


@demo("demo-of-another-target", must_fail=["DEMO-ELSEWHERE"])
def of_another_target(patch: Patch) -> None:
    break_total(patch, lambda numbers: 0)

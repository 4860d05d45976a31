"""Demonstration faults that take effect in jobs alone."""

from __future__ import annotations

import os
import signal
from collections.abc import Sequence

from hyper_parallel_tests.faults import Patch
from hyper_parallel_tests.harness.tests.programs.demo_faults import break_total, demo


@demo("job-wrong-result", must_fail=["DEMO-RESULT"], applied_on=[1])
def wrong_result(patch: Patch) -> None:
    break_total(patch, lambda numbers: 0)


@demo("job-wrong-inside", must_fail=["DEMO-INSIDE"])
def wrong_inside(patch: Patch) -> None:
    break_total(patch, lambda numbers: 0)


@demo("job-hang", must_fail=["DEMO-RESULT"], watchdog=4, applied_on=[1])
def hang(patch: Patch) -> None:
    def wrong(numbers: Sequence[int]) -> int:
        while True:
            pass

    break_total(patch, wrong)


@demo("job-crash", must_fail=["DEMO-RESULT", "DEMO-WATCHED"], applied_on=[1])
def crash(patch: Patch) -> None:
    def wrong(numbers: Sequence[int]) -> int:
        os.kill(os.getpid(), signal.SIGKILL)
        return 0

    break_total(patch, wrong)


@demo("job-other-exception", must_fail=["DEMO-RESULT"])
def other_exception(patch: Patch) -> None:
    def wrong(numbers: Sequence[int]) -> int:
        raise KeyError("the sum is missing")

    break_total(patch, wrong)


@demo("job-harmless", must_fail=["DEMO-RESULT"])
def harmless(patch: Patch) -> None:
    break_total(patch, sum)

"""A case whose baseline waits for ever."""

from __future__ import annotations

import threading

import pytest

from hyper_parallel_tests.harness import in_clean_process


def wait() -> None:
    print("in the middle of the baseline", flush=True)
    threading.Event().wait()


@pytest.mark.watchdog(600)
def test_waits(world):
    in_clean_process(wait)

"""All cases pass; the end of the session is another matter, as the environment says."""

from __future__ import annotations

import os
import threading
from typing import Any

from hyper_parallel_tests.harness.tests.programs.neighbour import neighbour


def hang() -> None:
    threading.Event().wait()


def fail() -> None:
    raise ValueError("the session cannot end")


def test_prepares_the_end(world: Any, pytestconfig: Any) -> None:
    neighbour(world)
    if world.rank == 1:
        pytestconfig.add_cleanup({"hang": hang, "fail": fail}[os.environ["END"]])

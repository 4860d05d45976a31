"""A failing rank under pdb, as a person at a terminal sees it."""

from __future__ import annotations

import os
import pty
from collections.abc import Iterator
from pathlib import Path

import pytest

from hyper_parallel_tests.harness.group import SETTLE_S
from hyper_parallel_tests.harness.tests.launched import start

pytestmark = pytest.mark.watchdog(300)


@pytest.fixture
def terminal() -> Iterator[tuple[int, int]]:
    """Both ends of a terminal: the person's and the program's."""
    ends = pty.openpty()
    yield ends
    for end in ends:
        os.close(end)


def read_until(terminal: int, text: str) -> str:
    """What appears on the terminal up to `text`."""
    seen = b""
    while text.encode() not in seen:
        seen += os.read(terminal, 1024)
    return seen.decode()


def test_debugger_on_one_rank(tmp_path: Path, terminal):
    """--pdb-rank stops that rank at its failure, in its own frame, for as long as the person takes."""
    person, program = terminal
    words = ["--pdb-rank=1", "-k", "test_assertion_on_one_rank or test_neighbour_after_assertion"]
    with start(tmp_path, "failures_program", *words, cards=2, terminal=program, NO_COLOR="1") as running:
        read_until(person, "(Pdb)")
        os.write(person, f"import time; time.sleep({SETTLE_S + 1})\n".encode())
        os.write(person, b"p ['a', 'person', 'at', 'rank', world.rank]\n")
        read_until(person, "['a', 'person', 'at', 'rank', 1]")
        os.write(person, b"continue\n")
        read_until(person, "1 failed, 1 passed")
        run = running.end()
    assert run.code == 1
    case = run["test_assertion_on_one_rank"]
    assert (case.verdict, case.first_rank) == ("assertion", 1)

"""Launches whose ranks do not come up, do not collect the same cases, or do not leave."""

from __future__ import annotations

from contextlib import ExitStack

import pytest

from hyper_parallel_tests.harness.tests.launched import Run, start

pytestmark = pytest.mark.watchdog(300)

# No case of these needs a process group, so that a single rank needs no torch.
PURE = "--layer=l0"
STARTUP_S = 10


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Run]:
    """Launches side by side; most of them wait most of the time."""
    folder = tmp_path_factory.mktemp("collection")
    with ExitStack() as stack:

        def begin(name: str, program: str, *words: str, cards: int = 2, **environment: str) -> None:
            launches[name] = stack.enter_context(start(folder / name, program, *words, cards=cards, **environment))

        launches = {}
        begin("hanging end", "bad_end_program", END="hang")
        begin("endless import", "endless_import_program", f"--startup={STARTUP_S}")
        begin("failing end", "bad_end_program", END="fail")
        begin("order", "uneven_order_program")
        begin("number", "uneven_number_program")
        begin("dying import", "dying_import_program")
        begin("broken import", "broken_import_program", PURE, cards=1)
        begin("skipped file", "skipped_file_program", PURE, cards=1)
        begin("empty file", "empty_program", PURE, cards=1)
        return {name: launch.end() for name, launch in launches.items()}


def start_report(run: Run) -> str:
    """The text that stands for the cases that could not run."""
    assert (run.code, list(run.cases)) == (1, ["start"])
    return run["start"].text


def test_different_order(runs):
    """Ranks that collect in different orders run nothing; the report shows where they part."""
    said = start_report(runs["order"])
    assert "they part at number 0: rank 1 has" in said
    assert "test_letter[c], rank 0 has" in said


def test_different_number(runs):
    """Ranks that collect different numbers of cases run nothing."""
    said = start_report(runs["number"])
    assert "rank 1 collected 2 cases and rank 0 1" in said
    assert "test_second, rank 0 has nothing more" in said


def test_death_while_collecting(runs):
    """A rank that dies while it collects is named, with its output."""
    said = start_report(runs["dying import"])
    assert "rank 1: exited with code 3\n" in said
    assert "importing" in said


def test_endless_import(runs):
    """A rank that does not come up in time is named."""
    assert f"rank 1: not up after {STARTUP_S} s" in start_report(runs["endless import"])


def test_broken_import(runs):
    """A file that cannot be imported fails the launch, with the import error."""
    assert "cannot import name 'no_such_module'" in start_report(runs["broken import"])


def test_skipped_file(runs):
    """A file cannot skip itself unnoticed."""
    said = start_report(runs["skipped file"])
    assert "a whole file may not be skipped: Skipped: this file does not feel like it" in said


def test_empty_file(runs):
    """A file without cases does not pass."""
    assert (runs["empty file"].code, runs["empty file"].cases) == (5, {})


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("hanging end", "in hang"),
        ("failing end", "ValueError: the session cannot end"),
    ],
)
def test_bad_end_of_the_session(runs, name, says):
    """A rank that cannot end its session fails the launch, although all cases have passed."""
    run = runs[name]
    assert run.code == 1
    assert run["test_prepares_the_end"].outcome == "passed"
    assert "rank 1" in run["end"].text
    assert says in run["end"].text

"""Launches whose ranks do not come up, do not collect the same cases, or do not leave."""

from __future__ import annotations

from pathlib import Path

import pytest

from hyper_parallel_tests.harness.tests.launched import launch

pytestmark = pytest.mark.watchdog(300)


def test_different_order(tmp_path: Path):
    """Ranks that collect in different orders run nothing; the report shows where they part."""
    run = launch(tmp_path, "uneven_order_program", cards=2)
    assert (run.code, list(run.cases)) == (1, ["start"])
    assert "they part at number 0" in run["start"].message
    assert "rank 1 has" in run["start"].message
    assert "test_letter[c]" in run["start"].message


def test_different_number(tmp_path: Path):
    """Ranks that collect different numbers of cases run nothing."""
    run = launch(tmp_path, "uneven_number_program", cards=2)
    assert (run.code, list(run.cases)) == (1, ["start"])
    assert "rank 1 collected 2 cases and rank 0 1" in run["start"].message
    assert "test_second" in run["start"].message


def test_death_while_collecting(tmp_path: Path):
    """A rank that dies while it collects is named, with its output; its peer waits for nobody."""
    run = launch(tmp_path, "dying_import_program", cards=2)
    assert (run.code, list(run.cases)) == (1, ["start"])
    assert "rank 1: exited with code 3\nimporting" in run["start"].text


def test_endless_import(tmp_path: Path):
    """A rank that does not come up in time is named."""
    run = launch(tmp_path, "endless_import_program", "--startup=10", cards=2)
    assert (run.code, list(run.cases)) == (1, ["start"])
    assert "rank 1: not up after 10 s" in run["start"].text


def test_broken_import(tmp_path: Path):
    """A file that cannot be imported fails the launch, with the import error."""
    run = launch(tmp_path, "broken_import_program")
    assert (run.code, list(run.cases)) == (1, ["start"])
    assert "cannot import name 'no_such_module'" in run["start"].text


def test_skipped_file(tmp_path: Path):
    """A file cannot skip itself unnoticed."""
    run = launch(tmp_path, "skipped_file_program")
    assert (run.code, list(run.cases)) == (1, ["start"])
    assert "a whole file may not be skipped: Skipped: this file does not feel like it" in run["start"].text


def test_empty_file(tmp_path: Path):
    """A file without cases does not pass."""
    assert launch(tmp_path, "empty_program").code == 5


@pytest.mark.parametrize(
    ("end", "says"),
    [
        ("hang", "in hang"),
        ("fail", "ValueError: the session cannot end"),
    ],
)
def test_bad_end_of_the_session(tmp_path: Path, end, says):
    """A rank that cannot end its session fails the launch, although all cases have passed."""
    run = launch(tmp_path, "bad_end_program", cards=2, END=end)
    assert run.code == 1
    assert run["test_prepares_the_end"].outcome == "passed"
    assert "rank 1" in run["end"].text
    assert says in run["end"].text

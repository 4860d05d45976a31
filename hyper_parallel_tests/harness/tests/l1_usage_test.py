"""Wrong usage is told in one line and ends with pytest's code for it."""

from __future__ import annotations

from pathlib import Path

import pytest

from hyper_parallel_tests.harness.tests.launched import PROGRAMS, Launch, launch

pytestmark = pytest.mark.watchdog(300)

WRONG_USAGE = 4
# The cases need no process group, so that the rank needs no torch.
PURE = "--layer=l0"


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["no/such_test.py"], "no/such_test.py: no such file"),
        ([], "no test file given"),
        (["--cards=0", "."], "cards"),
        (["--cards=two", "."], "cards"),
        (["--cards=2", "--pdb-rank=2", "."], "ranks are 0..1"),
        (["--device=tpu", "."], "device"),
        (["--size=hourly", "."], "size"),
        (["--steps=0", "."], "steps"),
    ],
    ids=[
        "no such file",
        "no file",
        "no card",
        "cards in words",
        "no such rank",
        "no such device",
        "no such size",
        "no steps",
    ],
)
def test_wrong_usage(tmp_path: Path, words, says):
    """What the launcher cannot do is told before any rank starts."""
    with Launch(tmp_path, words, {}) as running:
        run = running.end()
    assert run.code == WRONG_USAGE
    assert says in run.terminal
    assert len(run.terminal.strip().splitlines()) <= 3


@pytest.mark.parametrize(
    ("program", "words", "says"),
    [
        ("plain_program", ["-k", "("], "Wrong expression passed to '-k'"),
        ("bad_mark_program", [], "watchdog takes one positive number of seconds, got ('soon',)"),
        ("bad_steps_program", [], "steps takes positive numbers like steps(200, nightly=2000, weekly=20000"),
    ],
)
def test_refused_by_pytest(tmp_path: Path, program, words, says):
    """What the ranks' pytest refuses is told as it says it."""
    run = launch(tmp_path, program, PURE, *words)
    assert run.code == WRONG_USAGE
    assert says in run["start"].text


def test_collect_only(tmp_path: Path):
    """--collect-only names the cases and runs none."""
    run = launch(tmp_path, "failing_program", PURE, "--collect-only")
    assert (run.code, run.cases) == (0, {})
    assert "programs/failing_program.py::test_number[4]\n" in run.terminal


def test_file_elsewhere(tmp_path: Path):
    """A case keeps its file's name where the file lies outside of the working directory."""
    elsewhere = tmp_path / "elsewhere" / "copied_program.py"
    elsewhere.parent.mkdir()
    elsewhere.write_text((PROGRAMS / "plain_program.py").read_text())
    with Launch(tmp_path / "run", [f"{elsewhere}::test_environment", PURE, "-v"], {}) as running:
        run = running.end()
    assert (run.code, list(run.cases)) == (0, ["test_environment"])
    assert "copied_program.py::test_environment" in run.terminal


@pytest.mark.parametrize(
    ("words", "steps", "limit"),
    [
        ([], 200, 160),
        (["--size=nightly"], 2000, 1060),
        (["--size=weekly"], 20000, 10060),
        (["--size=weekly", "--steps=3"], 3, 61.5),
        (["--steps=10", "--watchdog=30"], 10, 35),
    ],
    ids=["default", "nightly", "weekly", "steps", "watchdog"],
)
def test_steps(tmp_path: Path, words, steps, limit):
    """A long run gets the steps of its size, or those that were asked for, and the time that they take."""
    run = launch(tmp_path, "steps_program", PURE, *words)
    assert f"AssertionError: {steps} steps" in run["test_long"].text
    assert f"s of {limit:.0f} s" in run["test_long"].text
    assert "steps is for a case that says how many" in run["test_unsaid"].text


def test_survey(tmp_path: Path):
    """A survey ends well whatever the cases did: the report has their verdicts, and a result is kept."""
    run = launch(tmp_path, "failing_program", PURE, "--survey", "--watchdog=40")
    assert run.code == 0
    failed = [case for case in run.cases.values() if case.outcome == "failed"]
    assert failed
    assert all("s of 40 s" in case.text for case in failed)


def test_survey_of_ranks_that_do_not_start(tmp_path: Path):
    """What is no case's verdict fails a survey too: its report is not whole."""
    run = launch(tmp_path, "broken_import_program", PURE, "--survey")
    assert run.code != 0
    assert run["start"].outcome == "failed"

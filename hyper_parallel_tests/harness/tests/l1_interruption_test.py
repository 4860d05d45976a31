"""Launches that are ended from outside: ten at once, each in the middle of a case."""

from __future__ import annotations

import signal
from contextlib import ExitStack
from pathlib import Path

import pytest

from hyper_parallel_tests.harness.tests.launched import Launch, Run, start, wait_until

pytestmark = pytest.mark.watchdog(600)

# What .bazelrc leaves between SIGTERM at a target's timeout and SIGKILL.
BAZEL_GRACE_S = 10

INTERRUPTED = ("ctrl_c", "ctrl_c_in_a_terminal", "impatient", "sigterm", "sigkill")
RELEASED = ("first", "second", "third", "fourth", "fifth")


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Run]:
    """Ten launches at once: in the middle of a case five are ended from outside, then the others go on."""
    folder = tmp_path_factory.mktemp("crowd")
    with ExitStack() as stack:
        launches = {name: stack.enter_context(waiting(folder, name)) for name in (*INTERRUPTED, *RELEASED)}
        for launch in launches.values():
            launch.wait_for_output(0, "in the middle of the case")
            launch.wait_for_output(1, "in the middle of the case")
        launches["sigterm"].signal(signal.SIGTERM)
        ended = {"sigterm": launches["sigterm"].end()}
        launches["ctrl_c"].signal(signal.SIGINT)
        launches["ctrl_c_in_a_terminal"].signal_group(signal.SIGINT)
        launches["sigkill"].signal(signal.SIGKILL)
        wait_until(lambda: press_ctrl_c(launches["impatient"]), "the end of an interrupted launch")
        ended |= {name: launches[name].end() for name in INTERRUPTED if name != "sigterm"}
        (folder / "released").touch()
        return ended | {name: launches[name].end() for name in RELEASED}


def waiting(folder: Path, name: str) -> Launch:
    """A launch that waits in the middle of a case until it is released."""
    unfinished = folder / name / "unfinished"
    released = folder / "released"
    return start(
        folder / name,
        "waiting_program",
        cards=2,
        RELEASED=str(released),
        TEST_PREMATURE_EXIT_FILE=str(unfinished),
    )


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 2), (signal.SIGTERM, 1)], ids=["ctrl_c", "sigterm"])
def test_interruption_while_loading(tmp_path: Path, number, code):
    """A launch that is ended before its ranks are up says so, shows no traceback and leaves nothing behind."""
    with waiting(tmp_path, "early") as launch:
        wait_until(lambda: list(launch.temporary.iterdir()), "the launch's temporary folder")
        launch.signal(number)
        run = launch.end()
    assert run.code == code
    assert f"{signal.Signals(number).name} before the first case" in run.terminal
    assert "Traceback" not in run.terminal
    assert not unfinished(run)


def press_ctrl_c(launch: Launch) -> bool:
    """Press Ctrl-C once more; tells whether that was the last time."""
    launch.signal(signal.SIGINT)
    return launch.ended


def unfinished(run: Run) -> bool:
    """Whether the file is there that Bazel wants while a test runs, and not at its end."""
    return run.outputs.with_name("unfinished").exists()


@pytest.mark.parametrize(
    ("name", "code", "signal_name"),
    [
        ("ctrl_c", 2, "SIGINT"),
        ("ctrl_c_in_a_terminal", 2, "SIGINT"),
        ("sigterm", 1, "SIGTERM"),
    ],
)
def test_interruption(runs, name, code, signal_name):
    """Ctrl-C, and SIGTERM as of Bazel's timeout, end a launch with a report of where the case was."""
    run = runs[name]
    assert run.code == code
    case = run["test_waits"]
    assert (case.verdict, case.first_rank) == ("stopped", 0)
    assert f"interrupted by {signal_name}" in case.message
    assert "in test_waits" in case.text.partition("Python stacks of rank 0")[2]
    assert "still inside all_reduce" in case.text
    assert run["test_neighbour_before"].outcome == "passed"
    assert "test_neighbour_after" not in run.cases
    assert not unfinished(run)


def test_impatience(runs):
    """Pressing Ctrl-C again and again cannot make a launch leave anything behind."""
    assert runs["impatient"].code in {2, -signal.SIGINT}


def test_sigterm_leaves_time(runs):
    """Stacks and XML are written well within the time that Bazel leaves between SIGTERM and SIGKILL."""
    assert runs["sigterm"].seconds_after_signal < BAZEL_GRACE_S


def test_sigkill(runs):
    """A launcher that is killed takes its processes with it, and Bazel's mark of an unfinished test stays."""
    assert runs["sigkill"].code == -signal.SIGKILL
    assert runs["sigkill"].cases == {}
    assert unfinished(runs["sigkill"])


@pytest.mark.parametrize("name", RELEASED)
def test_others_are_not_disturbed(runs, name):
    """The other launches pass all their cases: no launch shares a port, a file or a process with another."""
    assert runs[name].code == 0
    assert list(runs[name].cases) == ["test_neighbour_before", "test_waits", "test_neighbour_after"]
    assert not unfinished(runs[name])

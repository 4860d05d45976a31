"""Baselines that run apart from the ranks, as beside an engine that changes torch."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from hyper_parallel_tests.harness.tests.launched import Run, launch, start

pytestmark = pytest.mark.watchdog(300)

APART = "--baselines=apart"


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return launch(tmp_path_factory.mktemp("baselines"), "baselines_program", APART, cards=2)


@pytest.mark.parametrize(
    "name",
    [
        "test_apart",
        "test_group_of_its_own",
        "test_ddp",
        "test_random_state",
        "test_change_stays_outside",
        "test_nested",
        "test_lambda",
        "test_world_without_engine",
        "test_death_that_a_case_survives",
        "test_after_a_death",
    ],
)
def test_promise(run, name):
    """What a case may rely on holds; the program's cases say what."""
    assert run[name].outcome == "passed"


def test_neighbours_of_bad_baselines_pass(run):
    """Ranks and siblings are relaunched after each bad end: every healthy case passes."""
    assert run.code == 1
    assert len(run.neighbours()) == 11
    assert set(run.neighbours().values()) == {"passed"}


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("test_leak", "it left torch's default dtype as torch.float64"),
        ("test_imports_the_engine", "it has imported the engine (hyper_parallel_tests.engines.torch_native.mesh)"),
        ("test_raises", "ZeroDivisionError: division by zero"),
        ("test_fails", "Failed: so that a session would end"),
        ("test_dies", "was gone before its baseline was computed: killed by SIGKILL"),
        ("test_crashes", "was gone before its baseline was computed: killed by SIGSEGV"),
    ],
)
def test_error(run, name, says):
    """A baseline that cannot be computed is an error, no assertion that would count as a kill; the report says why."""
    case = run[name]
    assert case.verdict == "error"
    assert says in case.message
    assert "BaselineError" in case.message


def test_traceback_of_the_baseline(run):
    """The traceback is the sibling's, down to the line of the baseline."""
    text = run["test_raises"].text
    assert "return 1 / number" in text
    assert "in divide" in text


def test_stacks_of_a_crash(run):
    """The stacks that a signal has written are in the report."""
    assert "in end_by" in run["test_crashes"].text


def test_hang(run):
    """A baseline that does not end is told by the watchdog, with the stacks and the output of the sibling."""
    case = run["test_hangs"]
    assert (case.verdict, case.first_rank) == ("hang", 1)
    stacks = case.text.partition("Python stacks of rank 1")[2].partition("last collectives")[0]
    assert "in wait_on_rank_1" in stacks
    assert "of the baseline's process" in stacks
    assert "about to wait" in case.text.partition("output of rank 1")[2]


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("test_hangs_outside_python", "in match"),
        ("test_stopped", "the baseline's process: no Python stacks: the process is stopped"),
    ],
)
def test_hang_without_answer(run, name, says):
    """A sibling that runs no Python code any more is asked by a signal, or said to be stopped."""
    case = run[name]
    assert (case.verdict, case.first_rank) == ("hang", 0)
    assert says in case.text


def test_hang_in_a_collective(run):
    """A baseline that waits for a peer's tells in which collective."""
    case = run["test_hangs_in_a_collective"]
    assert (case.verdict, case.first_rank) == ("hang", 0)
    assert "still in the baseline's process: " in case.message
    assert "all_reduce" in case.message


def test_sigkill_in_a_baseline(tmp_path: Path):
    """A launcher that is killed takes the siblings with it, whatever they do."""
    with start(tmp_path, "waiting_baseline_program", APART, cards=2) as running:
        for rank in range(2):
            running.wait_for_output(rank, "in the middle of the baseline")
        running.signal(signal.SIGKILL)
        assert running.end().code == -signal.SIGKILL


def test_in_place(tmp_path: Path):
    """Beside an engine that leaves torch alone baselines are the same, without another process."""
    run = launch(
        tmp_path,
        "baselines_program",
        "-k",
        "group_of_its_own or ddp or random_state or nested or lambda",
        cards=2,
    )
    assert run.code == 0
    assert len(run.cases) == 5

"""Jobs: what a case may rely on, what is told of bad ends, and that nothing is left of them."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from hyper_parallel_tests.harness.tests.launched import Launch, Run, launch, start, wait_until

pytestmark = pytest.mark.watchdog(300)

JOBS = "--jobs"


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return launch(tmp_path_factory.mktemp("jobs"), "jobs_program", JOBS, "--watchdog=240", cards=4)


@pytest.mark.parametrize(
    "name",
    [
        "test_results",
        "test_partial",
        "test_place",
        "test_stop_and_start_anew",
        "test_engine",
        "test_baseline_in_a_job",
        "test_killed_rank",
        "test_exit_codes",
        "test_assertion_that_is_watched",
        "test_child_of_a_job",
        "test_forked_child_comes_back",
        "test_number_of_cards[0-cards=0]",
        "test_number_of_cards[5-1 to 4 cards]",
        "test_number_of_cards[2.0-cards=2\\\\.0]",
        "test_bad_input",
        "test_starter_dies_and_the_case_goes_on",
        "test_job_after_the_starter_died",
    ],
)
def test_promise(run, name):
    """What a case may rely on holds; the program's cases say what."""
    assert run[name].outcome == "passed"


def test_neighbours_of_bad_jobs_pass(run):
    """The case's rank is relaunched after each bad end: every healthy case passes."""
    assert run.code == 1
    assert len(run.neighbours()) == 12
    assert set(run.neighbours().values()) == {"passed"}


@pytest.mark.parametrize(
    ("name", "verdict", "says"),
    [
        ("test_raises", "error", "rank 1 of 4 in job 2: ZeroDivisionError: float division by zero"),
        ("test_asserts", "assertion", "rank 1 of 2 in job 1: AssertionError: assert 1 == 3"),
        ("test_dies", "crash", "rank 1 of 2 in job 1: was gone before its function returned: killed by SIGKILL"),
        ("test_segmentation_fault", "crash", "rank 0 of 2 in job 1: was gone before its function returned: killed by"),
        ("test_peer_waits", "error", "rank 1 of 2 in job 1: ValueError: the cause"),
        ("test_limit", "hang", "rank 1 of 2 in job 1: did not come to an end (limit) and is at jobs_program.py"),
        ("test_limit_of_a_watched_job", "hang", "did not come to an end (limit) and is at __init__.py"),
        ("test_watchdog", "hang", "waits for rank 1 of job 1, which is at jobs_program.py"),
        ("test_watchdog_outside_python", "hang", "waits for rank 0 of job 1, which is at __init__.py"),
        ("test_watchdog_of_stopped_ranks", "hang", "no Python stacks: the process is stopped"),
        (
            "test_starter_dies",
            "error",
            "the process that starts jobs was gone before job 1 was over: killed by SIGKILL",
        ),
        ("test_cases_rank_dies", "crash", "the rank was gone before the case was over: killed by SIGKILL"),
    ],
)
def test_bad_end(run, name, verdict, says):
    """The message tells which rank of which job was the first cause, and what it did; peers are not in the way."""
    case = run[name]
    assert (case.outcome, case.verdict) == ("failed", verdict)
    assert says in case.message


@pytest.mark.parametrize(
    ("name", "first", "peer"),
    [
        ("test_raises", "in divide", "rank 0 of job 2: lost a peer"),
        ("test_asserts", "in expect", "rank 0 of job 1: lost a peer"),
        ("test_segmentation_fault", "in die", "rank 1 of job 1: lost a peer"),
        ("test_peer_waits", "in wait_while_a_peer_fails", "rank 0 of job 1: was stopped"),
        ("test_limit", "in spin", "rank 0 of job 1: was stopped"),
    ],
)
def test_report(run, name, first, peer):
    """The report shows the first cause down to the line of the function, and after it what its peers saw."""
    cause, found, rest = run[name].text.partition(f"=== {peer}")
    assert found
    assert "(first cause)" in cause.rpartition("=== rank")[2]
    assert first in cause
    assert rest


@pytest.mark.parametrize(
    ("name", "says"),
    [("test_raises", "about to divide"), ("test_dies", "the last word"), ("test_watchdog", "about to spin")],
)
def test_output(run, name, says):
    """What the ranks of a job printed is in the report, by rank."""
    assert says in run[name].text.partition("--- output of rank 1 of job")[2]


@pytest.mark.parametrize("name", ["test_watchdog", "test_watchdog_outside_python"])
def test_stacks_of_a_hang(run, name):
    """The case's watchdog shows the stacks of the ranks of the job."""
    stacks = run[name].text.partition("Python stacks of rank 0")[2]
    assert "of rank 1 of job 1 (most recent call first)" in stacks
    assert "jobs_program.py" in stacks.partition("of rank 1 of job 1")[2]


def test_pending_collective(run):
    """A rank of a job that waits in a collective tells which."""
    assert "in rank 0 of job 1: all_reduce #1" in run["test_watchdog"].text
    assert "all_reduce #1" in run["test_limit"].text.partition("rank 0 of job 1: was stopped")[2]


@pytest.mark.parametrize("name", ["test_not_offered", "test_not_offered_to_a_watched_job"])
def test_what_the_engine_does_not_offer(run, name):
    """A job that needs what the engine lacks makes its case not offered."""
    case = run[name]
    assert (case.outcome, case.verdict) == ("skipped", "not-offered")
    assert "engine demo does not offer ring: only Ulysses is there" in case.message


def test_baselines_apart(tmp_path: Path):
    """Beside an engine that changes torch the ranks of a job have clean processes as well."""
    run = launch(tmp_path, "jobs_program", JOBS, "--baselines=apart", "-k", "baseline or partial", cards=2)
    assert (run.code, len(run.cases)) == (0, 2)


def test_reports_tell_of_jobs(run):
    """Who reads the report can run the case again as it ran."""
    said = run["test_results"].properties
    assert (said["cards"], said["jobs"]) == ("4", "True")


def test_without_jobs(tmp_path: Path):
    """Where the launch has no jobs a case that starts one is told how to have them."""
    run = launch(tmp_path, "jobs_program", "-k", "partial", cards=1)
    assert run["test_partial"].verdict == "error"
    assert "jobs = True" in run["test_partial"].message


@pytest.fixture(scope="module")
def caught(tmp_path_factory: pytest.TempPathFactory) -> Run:
    catalogue = "--faults=hyper_parallel_tests.harness.tests.programs.demo_job_faults"
    return launch(tmp_path_factory.mktemp("caught"), "caught_in_jobs_program", JOBS, catalogue, cards=2)


@pytest.mark.parametrize(
    ("name", "contract", "killer"),
    [
        ("job-wrong-result", "DEMO-RESULT", "test_result_of_a_job (assertion on rank 0)"),
        ("job-wrong-inside", "DEMO-INSIDE", "test_assertion_in_a_job (assertion on rank 0)"),
        ("job-hang", "DEMO-RESULT", "test_result_of_a_job (hang on rank 0)"),
        ("job-crash", "DEMO-RESULT", "test_result_of_a_job (crash on rank 0)"),
        ("job-crash", "DEMO-WATCHED", "test_watched_job (assertion on rank 0)"),
    ],
)
def test_caught(caught, name, contract, killer):
    """A fault is in the ranks of jobs too: what it breaks there is a kill, by the case, its job or the watchdog."""
    assert caught[name].outcome == "passed"
    assert killer in caught[name].properties[f"kill {contract}"]


@pytest.mark.parametrize(
    ("name", "says"),
    [("job-other-exception", "ended as error"), ("job-harmless", "passed although the fault was on (reached on")],
)
def test_survived(caught, name, says):
    """Another exception in a job is no kill, and neither is a fault that changes nothing."""
    assert caught[name].verdict == "survived"
    assert says in caught[name].text


def waiting(folder: Path) -> Launch:
    """A launch whose job waits, with shared memory and children of its own."""
    return start(folder, "waiting_job_program", JOBS, cards=2)


def wait_for_job(launch: Launch) -> None:
    """Wait until all ranks of the job are where they stay."""
    wait_until(lambda: len(list(launch.outputs.rglob("rank * waits"))) == 2, "a job that waits")


@pytest.mark.parametrize(
    ("number", "code"),
    [(signal.SIGTERM, 1), (signal.SIGINT, 2), (signal.SIGKILL, -signal.SIGKILL)],
    ids=["sigterm", "ctrl_c", "sigkill"],
)
def test_interruption(tmp_path: Path, number, code):
    """A launch that is ended in the middle of a job leaves nothing of it; where it can, it says where the job was."""
    with waiting(tmp_path) as launch:
        wait_for_job(launch)
        launch.signal(number)
        run = launch.end()
    assert run.code == code
    if number != signal.SIGKILL:
        assert "rank 1 of job 1" in run["test_waits"].text
        assert "in wait" in run["test_waits"].text.partition("of rank 1 of job 1")[2]

"""What the report says of cases that fail on two ranks, and that their neighbours are none the worse."""

from __future__ import annotations

import pytest

from hyper_parallel_tests.harness.tests.launched import PROGRAMS, Run, launch

pytestmark = pytest.mark.watchdog(300)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    classes = str(PROGRAMS / "classes_program.py")
    return launch(tmp_path_factory.mktemp("failures"), "failures_program", classes, cards=2)


def test_neighbours_of_failures_pass(run):
    """Every healthy case runs and passes, whatever the case before it did; the launch fails."""
    assert run.code == 1
    assert len(run.neighbours()) == 21
    assert set(run.neighbours().values()) == {"passed"}


def test_assertion_on_one_rank(run):
    """An assertion on one rank fails the case and is told of that rank."""
    case = run["test_assertion_on_one_rank"]
    assert (case.verdict, case.first_rank) == ("assertion", 1)
    assert "rank 1 of 2" in case.message
    assert "rank 1 is odd" in case.message
    assert "rank 0: finished without complaint" in case.text


def test_two_failures(run):
    """Of two failures the report leads with the first in time; the other is told too."""
    case = run["test_two_failures"]
    assert (case.verdict, case.first_rank) == ("assertion", 1)
    assert case.text.index("the first in time") < case.text.index("the second in time")


def test_symptom_before_cause(run):
    """A lost connection is told as a consequence, even where it was seen before the cause."""
    case = run["test_symptom_before_cause"]
    assert (case.verdict, case.first_rank) == ("error", 1)
    assert "the cause" in case.message
    assert "rank 0: lost a peer" in case.text


def test_error_in_setup_while_a_peer_waits(run):
    """A rank that fails in setup leads; its peer is stopped in the collective that it waits in."""
    case = run["test_error_in_setup_while_a_peer_waits"]
    assert (case.verdict, case.first_rank) == ("error", 1)
    assert "in setup: ValueError: no data on rank 1" in case.message
    assert "rank 0: was still running when the case was stopped" in case.text
    assert "still inside all_reduce" in case.text


def test_assertion_in_teardown(run):
    """A failing teardown fails the case."""
    case = run["test_assertion_in_teardown"]
    assert (case.verdict, case.first_rank) == ("assertion", 1)
    assert "in teardown" in case.message


@pytest.mark.parametrize(
    ("name", "rank", "how"),
    [
        ("test_killed", 1, "killed by SIGKILL"),
        ("test_segmentation_fault", 0, "killed by SIGSEGV"),
        ("test_exit_with_code_0", 1, "exited with code 0"),
        ("test_process_exit_in_fixture", 1, "exited with code 3"),
    ],
)
def test_death_of_a_rank(run, name, rank, how):
    """A rank that dies fails its case with the way it died, also when it exits with code 0."""
    case = run[name]
    assert (case.verdict, case.first_rank) == ("crash", rank)
    assert how in case.message


def test_stacks_of_a_segmentation_fault(run):
    """A rank that a signal kills leaves its Python stack."""
    text = run["test_segmentation_fault"].text
    assert "failures_program.py" in text.partition("Python stacks of rank 0")[2]


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("test_system_exit_in_fixture", "in setup: SystemExit: leaving early"),
        ("test_pytest_exit_in_fixture", "in setup: Exit: enough of this"),
        ("test_interrupt_from_inside", "in call: KeyboardInterrupt"),
    ],
)
def test_exit_from_inside(run, name, says):
    """A case cannot end the session: what it raises to that end is its own error."""
    case = run[name]
    assert (case.verdict, case.first_rank) == ("error", 1)
    assert says in case.message
    assert "failures_program.py" in case.text


def test_skip_on_one_rank(run):
    """A skip on one rank only is a failure that names the rank."""
    case = run["test_skip_on_one_rank"]
    assert (case.outcome, case.verdict, case.first_rank) == ("failed", "uneven", 1)
    assert "rank 1 does not feel like it" in case.message


def test_skip_for_different_reasons(run):
    """Ranks that skip for different reasons do not agree."""
    case = run["test_skip_for_different_reasons"]
    assert (case.outcome, case.verdict) == ("failed", "uneven")
    assert "for different reasons" in case.message
    assert "no device for rank 1" in case.text


def test_skip_on_all_ranks(run):
    """A skip of all ranks is a skip, with its reason."""
    case = run["test_skip_on_all_ranks"]
    assert (case.outcome, case.message) == ("skipped", "nothing to see")


def test_odd_exceptions(run):
    """An exception that cannot be printed and an endless recursion are told like any other."""
    assert "Unspeakable: <exception str() failed>" in run["test_exception_that_cannot_be_printed"].message
    assert "RecursionError" in run["test_endless_recursion"].message


def test_forked_child_comes_back(run):
    """A forked child does not run on as a second rank, and the case that let it is told to end it."""
    case = run["test_forked_child_comes_back"]
    assert case.verdict == "leak"
    assert "os._exit()" in case.message


def test_thread_left_on_one_rank(run):
    """A thread left behind fails the case on its rank, by name."""
    case = run["test_thread_left_on_one_rank"]
    assert (case.verdict, case.first_rank) == ("leak", 1)
    assert "'forgotten'" in case.message


def test_default_group_destroyed(run):
    """Destroying the default group is a failure, unless the case says that it means to."""
    case = run["test_default_group_destroyed"]
    assert case.verdict == "leak"
    assert "own_process_group" in case.message
    assert run["test_default_group_destroyed_on_purpose"].outcome == "passed"


def test_many_process_groups(run):
    """A case may make many process groups; fresh ranks follow it."""
    assert run["test_many_process_groups"].outcome == "passed"


def test_collective_in_session_teardown(run):
    """The teardown of a session fixture may use collectives."""
    assert run["test_collective_in_session_teardown"].outcome == "passed"


@pytest.mark.parametrize("name", ["test_fixtures_are_up", "test_fixtures_are_up_again", "test_class_fixture_is_down"])
def test_fixtures_of_every_scope(run, name):
    """Fixtures of classes and modules live as long as pytest says, and are made anew on fresh ranks."""
    assert run[name].outcome == "passed"


def test_unittest(run):
    """Cases of unittest pass, fail and skip like any other."""
    assert run["test_passes"].outcome == "passed"
    assert run["test_fails_too"].verdict == "assertion"
    assert (run["test_skips"].outcome, run["test_skips"].message) == ("skipped", "on all ranks")


def test_expected_failures(run):
    """An expected failure is no failure; one that does not come is."""
    assert run["test_expected_failure"].message == "expected failure: known"
    assert "[XPASS(strict)] known" in run["test_unexpected_pass"].message


def test_summary_names_each_failure(run):
    """The terminal ends with one line a failed case and the count."""
    failed = [name for name, case in run.cases.items() if case.outcome == "failed"]
    summary = run.terminal.partition("short test summary info")[2]
    assert all(f"::{name}\n" in summary or f"::{name} - " in summary for name in failed)
    assert f"{len(failed)} failed" in summary

"""What the report says of cases that do not come to an end."""

from __future__ import annotations

import pytest

from hyper_parallel_tests.harness.tests.launched import Run, launch

pytestmark = pytest.mark.watchdog(300)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return launch(tmp_path_factory.mktemp("hangs"), "hangs_program", "--watchdog=240", cards=2)


def test_neighbours_of_hangs_pass(run):
    """The ranks are relaunched after each hang: every healthy case passes."""
    assert run.code == 1
    assert len(run.neighbours()) == 6
    assert set(run.neighbours().values()) == {"passed"}


@pytest.mark.parametrize(
    ("name", "rank", "where"),
    [
        ("test_hang_in_a_collective", 0, "still inside all_reduce"),
        ("test_hang_in_python_while_a_peer_waits", 1, "in spin"),
        ("test_hang_in_teardown", 1, "in spin"),
        ("test_stopped_rank", 1, "the process is stopped"),
        ("test_hang_outside_python", 0, "in match, called from hangs_program.py"),
        ("test_all_ranks_wait_for_each_other", 0, "still inside recv"),
    ],
)
def test_hang(run, name, rank, where):
    """A hang is told after the case's own limit, by the rank that the others wait for and where it is."""
    case = run[name]
    assert (case.verdict, case.first_rank) == ("hang", rank)
    assert "after 3 s" in case.message
    assert where in case.message


@pytest.mark.parametrize(
    "name",
    [
        "test_hang_in_a_collective",
        "test_hang_in_python_while_a_peer_waits",
        "test_hang_in_teardown",
        "test_hang_outside_python",
        "test_all_ranks_wait_for_each_other",
    ],
)
def test_stacks_of_a_hang(run, name):
    """The Python stack of a rank that hangs shows the line of the case."""
    case = run[name]
    stacks = case.text.partition(f"Python stacks of rank {case.first_rank}")[2]
    assert "hangs_program.py" in stacks
    assert "Segmentation fault" not in case.text


def test_pending_collective(run):
    """A rank that waits in a collective tells which, of what, and for how long."""
    assert "all_reduce" in (text := run["test_hang_in_a_collective"].text)
    assert "float32[2] -> float32[2]: PENDING for" in text


def test_output_of_a_hang(run):
    """What a rank printed before it hung is in the report."""
    text = run["test_hang_in_python_while_a_peer_waits"].text
    assert "about to spin" in text.partition("output of rank 1")[2]


def test_stacks_are_kept(run):
    """The stacks are among the kept outputs too."""
    assert "in spin" in (run.outputs / "rank1.stacks").read_text()

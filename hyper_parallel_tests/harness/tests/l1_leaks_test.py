"""What cases leave behind fails them, and never reaches the next one."""

from __future__ import annotations

from pathlib import Path

import pytest

from hyper_parallel_tests.harness.tests.launched import PROGRAMS, Run, launch

pytestmark = pytest.mark.watchdog(300)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return launch(tmp_path_factory.mktemp("leaks"), "leaks_program", str(PROGRAMS / "children_program.py"))


def test_neighbours_of_leaks_pass(run):
    """Every healthy case runs on clean ranks."""
    assert run.code == 1
    assert len(run.neighbours()) == 10
    assert set(run.neighbours().values()) == {"passed"}


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("test_thread", "left thread 'forgotten' running"),
        ("test_child_process", "left child process"),
        ("test_daemon", "left child process"),
        ("test_environment_variable", "left environment variables changed: OMP_NUM_THREADS"),
        ("test_working_directory", "left the working directory at"),
        ("test_default_dtype", "left torch's default dtype as torch.float64"),
        ("test_gradient_mode", "left torch's gradient mode as False"),
        ("test_alarm", "left an alarm running"),
        ("test_closed_output", "left standard output closed"),
    ],
)
def test_leak(run, name, says):
    """What a case leaves behind fails it and is named."""
    case = run[name]
    assert (case.verdict, case.first_rank) == ("leak", 0)
    assert says in case.message


@pytest.mark.parametrize(
    "name",
    [
        "test_child_process_that_was_told_to_end",
        "test_thread_and_child_process_that_end",
        "test_what_is_put_back",
        "test_pool_of_a_fork_server",
        "test_data_loader",
    ],
)
def test_no_leak(run, name):
    """What is on its way out, put back or put away is no leak; workers start as they do under torchrun."""
    assert run[name].outcome == "passed"


def test_shared_memory(tmp_path: Path):
    """Shared memory goes with its rank, however the rank ends."""
    run = launch(tmp_path, "shared_memory_program")
    assert run["test_rank_killed_with_shared_memory"].verdict == "crash"
    assert run["test_shared_memory_until_the_end"].outcome == "passed"
    names = [name for told in run.outputs.rglob("segments") for name in told.read_text().split()]
    assert len(names) == 4
    assert not [name for name in names if Path("/dev/shm", name).exists()]

"""What Bazel asks of a test program: shards, filters, kept outputs, marks, and an end before the timeout."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest

from hyper_parallel_tests.harness.tests.launched import Launch, Run, launch, start

pytestmark = pytest.mark.watchdog(300)

TIMEOUT_S = 40
CASES = [*(f"test_letter[{letter}]" for letter in "abcdef"), "test_environment"]


@dataclass(frozen=True)
class Runs:
    """Launches side by side: three shards of one program, the last of nine, and one without an end."""

    shards: list[Run]
    empty: Run
    endless: Run


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Runs:
    folder = tmp_path_factory.mktemp("bazel")
    never = str(folder / "never")
    with ExitStack() as stack:
        endless = start(folder / "endless", "waiting_program", RELEASED=never, TEST_TIMEOUT=str(TIMEOUT_S))
        stack.enter_context(endless)
        shards = [shard(folder, index, of) for index, of in [(0, 3), (1, 3), (2, 3), (8, 9)]]
        for one in shards:
            stack.enter_context(one)
        *full, empty = [one.end() for one in shards]
        return Runs(full, empty, endless.end())


def shard(folder: Path, index: int, of: int) -> Launch:
    """One shard of the plain program, told as Bazel tells it."""
    own = folder / f"{index}_of_{of}"
    return start(
        own,
        "plain_program",
        TEST_SHARD_INDEX=str(index),
        TEST_TOTAL_SHARDS=str(of),
        TEST_SHARD_STATUS_FILE=str(own / "status"),
        TEST_PREMATURE_EXIT_FILE=str(own / "unfinished"),
    )


def test_shards_share_the_cases(runs):
    """Each case runs in exactly one shard."""
    assert [run.code for run in runs.shards] == [0, 0, 0]
    assert sorted(name for run in runs.shards for name in run.cases) == sorted(CASES)


def test_empty_shard_passes(runs):
    """A shard without a case passes."""
    assert (runs.empty.code, runs.empty.cases) == (0, {})


def test_marks_of_a_test_program(runs):
    """A launch says that it understands shards, and takes away the mark of an unfinished test."""
    for run in [*runs.shards, runs.empty]:
        assert run.outputs.with_name("status").exists()
        assert not run.outputs.with_name("unfinished").exists()


def test_kept_outputs(runs):
    """Logs, stacks and artifacts are kept, temporary files are not."""
    run = next(run for run in runs.shards if "test_environment" in run.cases)
    kept = {str(path.relative_to(run.outputs)) for path in run.outputs.rglob("*") if path.is_file()}
    artifact = next(name for name in kept if name.endswith("/kept"))
    assert kept == {"rank0.log", "rank0.stacks", artifact}
    assert "test_environment" in artifact
    temporary = Path((run.outputs / artifact).read_text())
    assert temporary.name == "rank0.tmp"
    assert not temporary.exists()


def test_log_of_a_rank(runs):
    """What a passing case writes is in the log of its rank, in order."""
    log = (runs.shards[0].outputs / "rank0.log").read_text().split("\n")
    assert log[:3] == ["ran a", "ran d", ""]


def test_filter(tmp_path: Path):
    """--test_filter runs the cases whose names contain it."""
    run = launch(tmp_path, "plain_program", TESTBRIDGE_TEST_ONLY="letter[b]")
    assert (run.code, list(run.cases)) == (0, ["test_letter[b]"])


def test_filter_of_other_targets(tmp_path: Path):
    """A filter that is meant for another target of the same command leaves nothing to fail here."""
    run = launch(tmp_path, "plain_program", TESTBRIDGE_TEST_ONLY="no_such_case")
    assert (run.code, run.cases) == (0, {})


def test_nothing_collected(tmp_path: Path):
    """Without a filter, a launch that finds no case does not pass."""
    assert launch(tmp_path, "plain_program", "-k", "no_such_case").code == 5


def test_end_before_the_timeout(runs):
    """A launch ends by itself before Bazel's timeout, with stacks, and says what it did not run."""
    run = runs.endless
    assert run.code == 1
    case = run["test_waits"]
    assert (case.verdict, case.first_rank) == ("stopped", 0)
    assert "the target's time was up" in case.message
    assert "in test_waits" in case.text.partition("Python stacks of rank 0")[2]
    assert "test_neighbour_after" in run["start"].text
    assert run.seconds < TIMEOUT_S


def test_stop_after_failures(tmp_path: Path):
    """--maxfail counts each failed case once."""
    run = launch(tmp_path, "failing_program", "--maxfail=3")
    assert [case.outcome for case in run.cases.values()] == ["failed"] * 3

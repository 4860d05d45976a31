"""What Bazel asks of a test program: shards, filters, kept outputs, marks, and an end before the timeout."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

import pytest

from hyper_parallel_tests.harness.tests.launched import Launch, Run, start

pytestmark = pytest.mark.watchdog(300)

# The cases need no process group, so that the ranks need no torch.
PURE = "--layer=l0"
TIMEOUT_S = 20
CASES = [*(f"test_letter[{letter}]" for letter in "abcdef"), "test_environment"]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Run]:
    """Launches side by side: shards, filters, and one without an end."""
    folder = tmp_path_factory.mktemp("bazel")
    with ExitStack() as stack:

        def begin(name: str, program: str, *words: str, **environment: str) -> None:
            launches[name] = stack.enter_context(start(folder / name, program, *words, **environment))

        launches: dict[str, Launch] = {}
        never = {"RELEASED": str(folder / "never"), "TEST_TIMEOUT": str(TIMEOUT_S)}
        begin("endless", "waiting_program", "-k", "waits or after", **never)
        for index, of in [(0, 2), (1, 2), (8, 9)]:
            name = f"shard {index} of {of}"
            begin(name, "plain_program", PURE, **shard(folder / name, index, of))
        begin("filter", "plain_program", PURE, TESTBRIDGE_TEST_ONLY="letter[b]")
        begin("other filter", "plain_program", PURE, TESTBRIDGE_TEST_ONLY="no_such_case")
        begin("no case", "plain_program", PURE, "-k", "no_such_case")
        begin("maxfail", "failing_program", PURE, "--maxfail=3")
        return {name: launch.end() for name, launch in launches.items()}


def shard(folder: Path, index: int, of: int) -> dict[str, str]:
    """What Bazel tells one shard."""
    return {
        "TEST_SHARD_INDEX": str(index),
        "TEST_TOTAL_SHARDS": str(of),
        "TEST_SHARD_STATUS_FILE": str(folder / "status"),
        "TEST_PREMATURE_EXIT_FILE": str(folder / "unfinished"),
    }


def test_shards_share_the_cases(runs):
    """Each case runs in exactly one shard."""
    shards = [runs[f"shard {index} of 2"] for index in range(2)]
    assert [run.code for run in shards] == [0, 0]
    assert sorted(name for run in shards for name in run.cases) == sorted(CASES)


def test_empty_shard_passes(runs):
    """A shard without a case passes."""
    run = runs["shard 8 of 9"]
    assert (run.code, run.cases) == (0, {})


@pytest.mark.parametrize("name", ["shard 0 of 2", "shard 8 of 9"])
def test_marks_of_a_test_program(runs, name):
    """A launch says that it understands shards, and takes away the mark of an unfinished test."""
    assert runs[name].outputs.with_name("status").exists()
    assert not runs[name].outputs.with_name("unfinished").exists()


def test_kept_outputs(runs):
    """Logs, stacks and artifacts are kept, temporary files are not."""
    run = runs["shard 0 of 2"]
    kept = {str(path.relative_to(run.outputs)) for path in run.outputs.rglob("*") if path.is_file()}
    artifact = next(name for name in kept if name.endswith("/kept"))
    assert kept == {"rank0.log", "rank0.stacks", artifact}
    assert "test_environment" in artifact
    temporary = Path((run.outputs / artifact).read_text())
    assert temporary.name == "rank0.tmp"
    assert not temporary.exists()


def test_log_of_a_rank(runs):
    """What a passing case writes is in the log of its rank, in order."""
    log = (runs["shard 0 of 2"].outputs / "rank0.log").read_text()
    assert log.splitlines() == ["ran a", "ran c", "ran e"]


def test_filter(runs):
    """--test_filter runs the cases whose names contain it."""
    assert (runs["filter"].code, list(runs["filter"].cases)) == (0, ["test_letter[b]"])


def test_filter_of_other_targets(runs):
    """A filter that is meant for another target of the same command leaves nothing to fail here."""
    assert (runs["other filter"].code, runs["other filter"].cases) == (0, {})


def test_nothing_collected(runs):
    """Without a filter, a launch that finds no case does not pass."""
    assert runs["no case"].code == 5


def test_end_before_the_timeout(runs):
    """A launch ends by itself ten seconds before Bazel's timeout, with stacks, and says what it did not run."""
    run = runs["endless"]
    assert run.code == 1
    case = run["test_waits"]
    assert (case.verdict, case.first_rank) == ("stopped", 0)
    assert "the target's time was up" in case.message
    assert "in test_waits" in case.text.partition("Python stacks of rank 0")[2]
    assert "test_neighbour_after" in run["start"].text
    assert case.seconds < TIMEOUT_S - 10


def test_stop_after_failures(runs):
    """--maxfail counts each failed case once."""
    assert [case.outcome for case in runs["maxfail"].cases.values()] == ["failed"] * 3

"""What counts as a fault that was caught, and what does not."""

from __future__ import annotations

from pathlib import Path

import pytest

from hyper_parallel_tests.harness.tests.launched import PROGRAMS, Launch, Run, launch

pytestmark = pytest.mark.watchdog(300)

CATALOGUE = "--faults=hyper_parallel_tests.harness.tests.programs.demo_faults"


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return launch(tmp_path_factory.mktemp("faults"), "caught_program", CATALOGUE, cards=2)


@pytest.mark.parametrize(
    ("name", "killer"),
    [
        ("demo-off-by-one", "test_sum[numbers0] (assertion on rank "),
        ("demo-hang", "test_sum[numbers0] (hang on rank 1)"),
        ("demo-crash", "test_sum[numbers0] (crash on rank 1)"),
    ],
)
def test_caught(run, name, killer):
    """A wrong result that a case asserts, a hang and a crash are kills; the report says by which case."""
    assert run[name].outcome == "passed"
    assert killer in run[name].properties["kill DEMO-SUM"]


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("demo-harmless", "passed although the fault was on (reached on ranks [0, 1])"),
        ("demo-other-exception", "ended as error"),
        ("demo-silent", "the fault was never reached"),
        ("demo-wrong-contract", "DEMO-PRODUCT survived"),
        ("demo-wrong-rank", "ranks [0] should have shown it and did not"),
    ],
)
def test_survived(run, name, says):
    """What proves nothing about the contract is no kill; the report says why."""
    case = run[name]
    assert (case.outcome, case.verdict) == ("failed", "survived")
    assert says in case.text


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("demo-does-not-fit", "the fault was written for ('values',)"),
        ("demo-breaks-collection", "ZeroDivisionError"),
        ("demo-changes-collection", "the group before"),
    ],
)
def test_not_applied(run, name, says):
    """A fault that cannot be applied, or that changes what is collected, is an error of its own."""
    case = run[name]
    assert (case.outcome, case.verdict) == ("failed", "error")
    assert says in case.text


def test_other_faults_are_proven_too(run):
    """Each fault has its verdict, whatever became of the one before, but for those of other targets."""
    assert len(run.cases) == 11
    assert "demo-of-another-target" not in run.cases
    assert run.code == 1


def test_one_fault(tmp_path: Path):
    """--test_filter picks faults by their names."""
    run = launch(tmp_path, "caught_program", CATALOGUE, TESTBRIDGE_TEST_ONLY="off-by-one")
    assert (run.code, list(run.cases)) == (0, ["demo-off-by-one"])


def test_import_error_is_no_kill(tmp_path: Path):
    """Cases that cannot be imported prove nothing."""
    run = launch(tmp_path, "broken_import_program", CATALOGUE)
    assert (run.code, list(run.cases)) == (1, ["start"])
    assert "no_such_module" in run["start"].text


def test_unknown_fault(tmp_path: Path):
    """Cases under a fault that does not exist do not run, and do not pass."""
    run = launch(tmp_path, "caught_program", "--fault=no-such-fault")
    assert (run.code, list(run.cases)) == (1, ["start"])
    assert "no fault 'no-such-fault'" in run["start"].text


def test_some_faults_of_a_contract(tmp_path):
    """In the default size so many faults of a contract are proven as were asked for, and the others are named."""
    found = launch(tmp_path, "caught_program", CATALOGUE, "--faults_per_contract=1", cards=2)
    assert list(found.cases) == ["demo-off-by-one", "demo-wrong-contract"]
    assert "9 more faults of these contracts" in found.terminal
    assert "demo-hang" in found.terminal


def test_proofs_in_one_launch(tmp_path):
    """Each proof has its own catalogues, files and ranks: what one's files cannot show is not asked of them."""
    catalogue = CATALOGUE.partition("=")[2]
    proofs = [f"--proof={catalogue}:{PROGRAMS / name}.py" for name in ("plain_program", "caught_program")]
    with Launch(tmp_path, ["--cards=2", *proofs], {"TESTBRIDGE_TEST_ONLY": "demo-crash"}, None) as running:
        found = running.end()
    assert (found.code, list(found.cases)) == (0, ["demo-crash"])
    assert "caught_program.py::test_sum" in found["demo-crash"].properties["kill DEMO-SUM"]

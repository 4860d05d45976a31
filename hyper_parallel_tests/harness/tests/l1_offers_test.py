"""Launches of cases that an engine cannot serve."""

from __future__ import annotations

import pytest

from hyper_parallel_tests.harness.tests.launched import Run, launch

pytestmark = pytest.mark.watchdog(300)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return launch(tmp_path_factory.mktemp("offers"), "not_offered_program", cards=2)


@pytest.mark.parametrize("name", ["test_not_offered", "test_not_offered_on_one_rank"])
def test_what_the_engine_does_not_offer(run, name):
    """A case that needs what the engine lacks is told apart, with the reason, and is no failure."""
    case = run[name]
    assert (case.outcome, case.verdict) == ("skipped", "not-offered")
    assert "engine demo does not offer ring: only Ulysses is there" in case.message
    assert f"NOT OFFERED hyper_parallel_tests/harness/tests/programs/not_offered_program.py::{name}: " in run.terminal


def test_the_others_run(run):
    """The rest of the target runs, and the launch is green."""
    assert (run.code, run.neighbours()) == (0, {"test_neighbour_after_not_offered": "passed"})

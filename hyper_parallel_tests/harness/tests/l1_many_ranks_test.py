"""More ranks than cores."""

from __future__ import annotations

from pathlib import Path

import pytest

from hyper_parallel_tests.harness.tests.launched import launch

pytestmark = pytest.mark.watchdog(300)


@pytest.mark.parametrize("cards", [4, 8])
def test_one_of_many_ranks_fails(tmp_path: Path, cards):
    """Of four and of eight ranks the one that fails is named, the others are not, and all go on."""
    run = launch(tmp_path, "many_ranks_program", cards=cards)
    assert run.code == 1
    assert set(run.neighbours().values()) == {"passed"}

    case = run["test_error_in_the_fixture_of_rank_2"]
    assert (case.verdict, case.first_rank) == ("error", 2)
    assert case.message == f"error: rank 2 of {cards}; first rank 2 in setup: ValueError: no data on rank 2"

    case = run["test_death_of_the_last_rank"]
    assert (case.verdict, case.first_rank) == ("crash", cards - 1)
    assert "killed by SIGABRT" in case.message
    assert "Segmentation fault" not in case.text

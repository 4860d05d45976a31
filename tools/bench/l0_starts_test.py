"""The soak's verdicts: which launches were fine, hung or failed, by the cases done and the clock."""

from __future__ import annotations

import pytest

from tools.bench import starts
from tools.bench.launches import Case
from tools.bench.starts import Start, judge

_LIMIT_S = 30.0


def _done(*ended: float | None) -> dict[int, Case]:
    """Cases by number, from when each ended on the last rank; None for one that did not."""
    return {number: Case(at, 0.001) for number, at in enumerate(ended) if at is not None}


def test_full_launches_and_groups_are_told_apart() -> None:
    """The first case of a launcher counts from its process' start, each further one from the case before."""
    assert judge(10.0, 13.5, _done(12.0, 12.5, 13.25), 3, _LIMIT_S, failed=False) == (
        Start("full", 2.0, "ok"),
        Start("group", 0.5, "ok"),
        Start("group", 0.75, "ok"),
    )


@pytest.mark.parametrize(("next_end", "verdict"), [(16.0, "failed"), (48.0, "hang")])
def test_a_missing_case_is_a_hang_when_the_limit_passed(next_end: float, verdict: str) -> None:
    """The launch after it is fine, but when it began is not known."""
    found = judge(10.0, next_end + 40, _done(12.0, None, next_end), 3, _LIMIT_S, failed=True)
    assert found[1:] == (Start("group", None, verdict), Start("group", None, "ok"))


@pytest.mark.parametrize(("ended", "verdict"), [(13.0, "failed"), (75.0, "hang")])
def test_a_launcher_that_gave_up_counts_what_it_tried(ended: float, verdict: str) -> None:
    """Ranks that did not come up end the launcher; the cases after that were no launches."""
    found = judge(10.0, ended, _done(12.0), 25, _LIMIT_S, failed=True)
    assert found == (Start("full", 2.0, "ok"), Start("group", None, verdict))


def test_a_launcher_that_never_came_up_is_one_launch() -> None:
    """No case was done, so one full launch was tried."""
    assert judge(10.0, 70.0, {}, 25, _LIMIT_S, failed=True) == (Start("full", None, "hang"),)


@pytest.mark.parametrize(("ended", "verdict"), [(13.0, "failed"), (75.0, "hang")])
def test_trouble_at_the_end_is_not_lost(ended: float, verdict: str) -> None:
    """All cases were done, yet the launcher failed or did not leave."""
    found = judge(10.0, ended, _done(12.0, 12.5), 2, _LIMIT_S, failed=True)
    assert [start.verdict for start in found] == ["ok", verdict]


def test_counts_say_which_kind_was_counted() -> None:
    """Groups count as launches, and the line says how many of them there are."""
    found = [Start("full", 2.0, "ok"), *[Start("group", 0.5, "ok")] * 9, Start("group", 1.6, "ok")]
    found += [Start("group", None, "hang"), Start("full", None, "failed")]
    assert starts.counts(found) == "13 launches (2 full, 11 groups): 1 hangs, 1 failures, 1 slow"


def test_a_distribution_shows_every_timed_launch() -> None:
    """Kinds are apart, slow ones are listed, and the histogram's counts add up."""
    found = [Start("group", 0.5 + step / 1000, "ok") for step in range(99)]
    found += [Start("group", 4.0, "ok"), Start("group", None, "hang"), Start("full", 2.0, "ok")]
    head, *histogram = starts.distribution(found, "group").splitlines()
    assert "lowest 0.500" in head
    assert head.endswith("over 3 times the median: 4.00")
    assert sum(int(line.split()[3]) for line in histogram) == 100


def test_equal_times_have_a_distribution_too() -> None:
    """A single launch, or the same time twice, is no division by zero."""
    assert "median 2.00" in starts.distribution([Start("full", 2.0, "ok")] * 2, "full")
    assert starts.distribution([], "full") == ""

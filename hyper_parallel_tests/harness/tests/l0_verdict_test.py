"""One verdict from what the ranks did: which rank leads, what the case is called, what the report says."""

from __future__ import annotations

import pytest

from hyper_parallel_tests.harness.channel import CaseInfo, Done, Phase
from hyper_parallel_tests.harness.group import PEER_FAILED, WATCHDOG, CaseRecord, RankRecord
from hyper_parallel_tests.harness.verdict import judge

INFO = CaseInfo("a_test.py::test_case", ("a_test.py", 1, "test_case"), ("DEMO-1",), None, False, "")
STARTED = 100.0


def record(*ranks: RankRecord, stopped: str = "") -> CaseRecord:
    return CaseRecord(list(ranks), started=STARTED, limit=60.0, stopped=stopped)


def passed(rank: int) -> RankRecord:
    return RankRecord(rank, [Phase("call", "passed", STARTED, 0.1)], Done(INFO.nodeid))


def skipped(rank: int, reason: str) -> RankRecord:
    return RankRecord(rank, [Phase("setup", "skipped", STARTED, 0.0, reason)], Done(INFO.nodeid))


def failed(rank: int, at: float, summary: str = "assert 1 == 2", kind: str = "assertion") -> RankRecord:
    return RankRecord(rank, [Phase("call", kind, STARTED + at, 0.1, summary)], Done(INFO.nodeid))


def lost_a_peer(rank: int, at: float, summary: str = "RuntimeError: Connection closed by peer") -> RankRecord:
    return failed(rank, at, summary, kind="error")


def died(rank: int, at: float, code: int | None = -9) -> RankRecord:
    return RankRecord(rank, exit_code=code, died_at=STARTED + at)


def stuck(rank: int, *collectives: str, line: str = "") -> RankRecord:
    stacks = f'Thread 0x00 (most recent call first):\n  File "{line}", line 7 in wait' if line else ""
    return RankRecord(rank, collectives=collectives, stacks=stacks)


IN_A_COLLECTIVE = "MainThread is inside all_reduce(tensor=float32[1]) at a_test.py:3: dist.all_reduce(x)"


def test_all_ranks_passed():
    """A case passes where each rank passes."""
    verdict = judge(INFO, record(passed(0), passed(1)))
    assert verdict.passed
    assert verdict.first is None


def test_all_ranks_skipped():
    """A case is skipped where each rank skips for the same reason."""
    assert judge(INFO, record(skipped(0, "why"), skipped(1, "why"))).kind == "skipped"


def declined(rank: int) -> RankRecord:
    return failed(rank, 1, "EngineUnsupported: engine demo does not offer ring", kind="not-offered")


@pytest.mark.parametrize("other", [declined(1), passed(1), stuck(1, IN_A_COLLECTIVE), lost_a_peer(1, 2)])
def test_what_the_engine_does_not_offer(other):
    """Such a case is neither passed nor failed, and its headline says what is missing."""
    verdict = judge(INFO, record(declined(0), other, stopped=PEER_FAILED))
    assert (verdict.kind, verdict.passed) == ("not-offered", False)
    assert "does not offer ring" in verdict.headline


def test_a_failure_beside_what_the_engine_does_not_offer():
    """A rank that fails by itself is a failure all the same."""
    assert judge(INFO, record(declined(0), failed(1, 2))).kind != "not-offered"


@pytest.mark.parametrize("ranks", [(passed(0), skipped(1, "why")), (skipped(0, "why"), skipped(1, "why not"))])
def test_ranks_that_disagree_about_skipping(ranks):
    """Ranks that do not skip alike are a failure of the case."""
    assert judge(INFO, record(*ranks)).kind == "uneven"


@pytest.mark.parametrize(
    ("ranks", "stopped", "kind", "first"),
    [
        pytest.param((failed(0, at=2), failed(1, at=1)), "", "assertion", 1, id="the first in time"),
        pytest.param((failed(0, at=1), failed(1, at=1)), "", "assertion", 0, id="the lower rank at the same time"),
        pytest.param((lost_a_peer(0, at=1), failed(1, at=2)), "", "assertion", 1, id="a cause after its symptom"),
        pytest.param((lost_a_peer(0, at=1), died(1, at=2)), "", "crash", 1, id="a death after its symptom"),
        pytest.param((lost_a_peer(0, at=2), lost_a_peer(1, at=1)), "", "error", 1, id="symptoms without a cause"),
        pytest.param((failed(0, at=1), died(1, at=2)), "", "assertion", 0, id="a failure before a death"),
        pytest.param((stuck(0), failed(1, at=9)), PEER_FAILED, "assertion", 1, id="a failure before who waits for it"),
        pytest.param((stuck(0), lost_a_peer(1, at=9)), PEER_FAILED, "hang", 0, id="who is stuck before who lost it"),
        pytest.param(
            (stuck(0, IN_A_COLLECTIVE), stuck(1, line="a_test.py")), WATCHDOG, "hang", 1, id="who does not come"
        ),
        pytest.param(
            (stuck(0, IN_A_COLLECTIVE), stuck(1, IN_A_COLLECTIVE)), WATCHDOG, "hang", 0, id="all in collectives"
        ),
        pytest.param((passed(0), stuck(1)), WATCHDOG, "hang", 1, id="a hang on one rank"),
        pytest.param((stuck(0), stuck(1)), "interrupted by SIGTERM", "stopped", 0, id="an interruption"),
        pytest.param((skipped(0, "why"), failed(1, at=1)), "", "assertion", 1, id="a failure beside a skip"),
    ],
)
def test_first_cause(ranks, stopped, kind, first):
    """The report leads with the rank that failed first by its own doing."""
    verdict = judge(INFO, record(*ranks, stopped=stopped))
    assert (verdict.kind, verdict.first) == (kind, first)
    assert f"=== rank {first} (first cause)" in verdict.text


@pytest.mark.parametrize(
    "summary",
    [
        "RuntimeError: [pair.cc:553] Connection closed by peer [127.0.0.1]:4711",
        "RuntimeError: [pair.cc:537] Read error [127.0.0.1]:4711: Connection reset by peer",
        "BrokenPipeError: [Errno 32] Broken pipe",
        "ConnectionRefusedError: [Errno 111] Connection refused",
        "RuntimeError: Timed out waiting 1800000ms for recv operation to complete",
        "torch.distributed.DistNetworkError: Failed to recv, got 0 bytes. Connection was likely closed. Socket closed",
    ],
)
def test_symptoms(summary):
    """What a rank says when its peer is gone is no cause."""
    assert judge(INFO, record(lost_a_peer(0, 1, summary), died(1, at=2))).first == 1


def test_assertion_about_connections_is_a_cause():
    """An assertion is a cause, whatever it speaks of."""
    verdict = judge(INFO, record(failed(0, 1, "AssertionError: Connection closed by peer"), died(1, at=2)))
    assert (verdict.kind, verdict.first) == ("assertion", 0)


@pytest.mark.parametrize(
    ("code", "says"),
    [(-11, "killed by SIGSEGV"), (0, "exited with code 0"), (None, "its line to the launcher was cut")],
)
def test_death(code, says):
    """A death is told with the way of it."""
    assert says in judge(INFO, record(passed(0), died(1, at=1, code=code))).headline


def test_report_quotes_the_contract():
    """The report says what the contract promises, not only its id."""
    text = judge(INFO, record(failed(0, at=1)), {"DEMO-1": "Sums are right."}).text
    assert "DEMO-1  Sums are right." in text


def test_headline_is_one_short_line():
    """However long a failure's message, its headline is a line."""
    headline = judge(INFO, record(failed(0, 1, "x" * 10_000 + "\nmore"))).headline
    assert "\n" not in headline
    assert len(headline) < 400


def test_report_is_printable():
    """What a terminal would act on, or cannot show, is escaped."""
    text = judge(INFO, record(failed(0, 1, "\x1b[31m \x00 \ud800 grün"))).text
    assert r"\x1b[31m \x00 \ud800 grün" in text
    text.encode()


def test_reached_ranks():
    """The verdict tells on which ranks a fault took effect."""
    one, other = passed(0), passed(1)
    other.reached = True
    assert judge(INFO, record(one, other)).reached == {1}


def behind(rank: int, *collectives: str, kind: str = "error", when: str = "call", rebuild: str = "") -> RankRecord:
    """A rank that has failed once it had issued these collectives."""
    phase = Phase(when, kind, STARTED, 0.1, "NotImplementedError: no rule", exception="NotImplementedError")
    return RankRecord(rank, [phase], Done(INFO.nodeid, rebuild), collectives=collectives)


GATHERED = "all_gather #4 of default_pg (0, 1): float32[4] -> float32[2, 4]: done"


@pytest.mark.parametrize(
    ("other", "together"),
    [
        (behind(1, GATHERED), True),
        (behind(1), False),
        (behind(1, GATHERED.replace("done", "PENDING for 2.0 s")), False),
        (behind(1, GATHERED, kind="assertion"), False),
        (behind(1, GATHERED, when="teardown"), False),
        (behind(1, GATHERED, rebuild="48 process groups are open"), False),
        (passed(1), False),
        (died(1, 0.1), False),
    ],
    ids=["alike", "one_fewer", "pending", "another_kind", "teardown", "rebuild", "passed", "died"],
)
def test_failed_together(other, together):
    """Ranks have failed together if all left the case's body alike, behind the same collectives that are all done."""
    assert record(behind(0, GATHERED), other).together is together
    assert not record(behind(0, GATHERED), other, stopped=WATCHDOG).together

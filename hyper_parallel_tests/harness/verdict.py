"""From what each rank did to one verdict: what happened, on which rank first, and the text that tells it."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from hyper_parallel_tests.harness import processes, stacks
from hyper_parallel_tests.harness.channel import CaseInfo, Phase
from hyper_parallel_tests.harness.evidence import PENDING
from hyper_parallel_tests.harness.group import PEER_FAILED, WATCHDOG, CaseRecord, RankRecord
from hyper_parallel_tests.harness.symptoms import is_symptom

_UNPRINTABLE = re.compile("[\x00-\x08\x0b-\x1f\x7f\ud800-\udfff]")
_LINE_LIMIT = 300


@dataclass(frozen=True)
class RankVerdict:
    """What one rank contributes.

    `kind` is passed, skipped, not-offered, assertion, error, leak, crash, hang, waiting (stopped for a reason that is
    not its own) or peer (an error that only says that a peer is gone).
    """

    rank: int
    kind: str
    at: float
    summary: str
    phase: Phase | None = None

    @property
    def own_evidence(self) -> bool:
        """Whether the rank itself shows the defect, by an assertion, by dying or by not coming to an end."""
        return self.kind in {"assertion", "crash", "hang"}


@dataclass(frozen=True)
class Verdict:
    """The judgement of one case over all its ranks.

    Attributes:
        kind: passed, skipped, not-offered (the engine says that it lacks a member of the port), assertion, error,
            leak, crash, hang, uneven (ranks disagree about skipping), stopped (from outside: an interruption, the
            target's time, too much output).
        ranks: one entry a rank.
        first: the rank that failed first by its own doing, None where none failed.
        headline: one line for summaries.
        text: the whole report.
        reached: ranks on which the fault took effect, where there was one.
        reproduction: the script that shows a defect that is known, where there is one.
    """

    kind: str
    ranks: tuple[RankVerdict, ...]
    first: int | None
    headline: str
    text: str
    reached: frozenset[int] = field(default_factory=frozenset)
    reproduction: str = ""

    @property
    def passed(self) -> bool:
        return self.kind == "passed"


def judge(info: CaseInfo, record: CaseRecord, statements: dict[str, str] | None = None) -> Verdict:
    """Judge one case from what its ranks did.

    Args:
        info: the case.
        record: what each rank reported, or how it ended.
        statements: contract id -> its sentence, for the report.
    """
    each = tuple(_judge_rank(one, record) for one in record.ranks)
    reached = frozenset(one.rank for one in record.ranks if one.reached)
    kinds = {one.kind for one in each}
    declined = next((one for one in each if one.kind == "not-offered"), None)
    if kinds == {"passed"}:
        return Verdict("passed", each, None, "passed", "", reached)
    if kinds == {"skipped"} and len({one.summary for one in each}) == 1:
        return Verdict("skipped", each, None, each[0].summary, each[0].summary, reached)
    if declined is not None and kinds <= {"not-offered", "passed", "waiting", "peer"}:
        return Verdict("not-offered", each, None, declined.summary, declined.summary, reached)
    if kinds <= {"passed", "skipped"}:
        kind, first = "uneven", next(one for one in each if one.kind == "skipped")
    else:
        first = _first_cause(each, record)
        waited = "hang" if record.stopped == PEER_FAILED else "stopped"
        kind = {"waiting": waited, "peer": "error"}.get(first.kind, first.kind)
    headline = _printable(_headline(kind, first, each, record))
    text = _printable(_report(info, record, each, first, headline, statements or {}))
    return Verdict(kind, each, first.rank, headline, text, reached)


def _printable(text: str) -> str:
    """`text` with what a terminal would act on, or could not show, as escapes."""
    return _UNPRINTABLE.sub(lambda found: found[0].encode("unicode-escape").decode(), text)


def _judge_rank(one: RankRecord, record: CaseRecord) -> RankVerdict:
    failures = [phase for phase in one.phases if phase.kind not in {"passed", "skipped"}]
    if failures:
        worst = failures[0]
        kind = "peer" if worst.kind == "error" and is_symptom(worst.summary) else worst.kind
        return RankVerdict(one.rank, kind, worst.at, worst.summary, worst)
    if one.died_at is not None:
        how = processes.exit_text(one.exit_code) if one.exit_code is not None else "its line to the launcher was cut"
        return RankVerdict(one.rank, "crash", one.died_at, f"the rank was gone before the case was over: {how}")
    if one.done is None:
        kind = "hang" if record.stopped == WATCHDOG else "waiting"
        return RankVerdict(one.rank, kind, record.started + record.limit, _where(one))
    skipped = next((phase for phase in one.phases if phase.kind == "skipped"), None)
    if skipped is not None:
        return RankVerdict(one.rank, "skipped", skipped.at, skipped.summary, skipped)
    return RankVerdict(one.rank, "passed", record.started, "")


def _where(one: RankRecord) -> str:
    """Where a rank that did not finish is, in one line."""
    if one.where:
        return one.where
    if pending := [line for line in one.collectives if PENDING.search(line)]:
        return "still " + re.sub(r"^MainThread (?=is inside|waits at)", "", pending[-1]).removeprefix("is ")
    main = stacks.main_thread(one.stacks)
    if not main:
        return f"does not answer; {one.stacks or 'it has left no Python stacks'}"
    inner, outer = (frame.rpartition("/")[2] for frame in (main[0], main[-1]))
    return f"still runs at {inner}" if inner == outer else f"still runs at {inner}, called from {outer}"


def _waits_for_peers(one: RankRecord) -> bool:
    return any(PENDING.search(line) for line in one.collectives)


def _first_cause(each: tuple[RankVerdict, ...], record: CaseRecord) -> RankVerdict:
    """The rank that failed by its own doing, the earliest of them; symptoms of a peer's trouble come last."""

    def order(one: RankVerdict) -> tuple[int, float, int]:
        if one.kind in {"hang", "waiting"}:
            # A rank that waits in a collective waits for the one that does not.
            stuck_elsewhere = not _waits_for_peers(record.ranks[one.rank])
            return (1 if stuck_elsewhere else 3, one.at, one.rank)
        return (2 if one.kind in {"peer", "not-offered"} else 0, one.at, one.rank)

    return min((one for one in each if one.kind not in {"passed", "skipped"}), key=order)


def _headline(kind: str, first: RankVerdict, each: tuple[RankVerdict, ...], record: CaseRecord) -> str:
    failed = [
        one.rank for one in each if one.kind == first.kind or one.kind not in {"passed", "skipped", "waiting", "peer"}
    ]
    of = f"of {len(each)}"
    line = first.summary.strip().partition("\n")[0]
    line = line if len(line) <= _LINE_LIMIT else f"{line[:_LINE_LIMIT]}..."
    if kind == "uneven":
        skipping = [one.rank for one in each if one.kind == "skipped"]
        others = "the others ran" if len(skipping) < len(each) else "for different reasons"
        return f"uneven: {_ranks(skipping)} {of} skipped, {others}: {line}"
    if kind in {"hang", "stopped"} and first.phase is None:
        stuck = [one.rank for one in each if one.kind in {"hang", "waiting"}]
        why = f"after {record.limit:.0f} s" if record.stopped == WATCHDOG else record.stopped
        return f"{kind}: {_ranks(stuck)} {of} did not finish ({why}); rank {first.rank} {line}"
    where = f" in {first.phase.when}" if first.phase is not None else ""
    return f"{kind}: {_ranks(failed)} {of}; first rank {first.rank}{where}: {line}"


def _ranks(numbers: list[int]) -> str:
    return ("rank " if len(numbers) == 1 else "ranks ") + ", ".join(map(str, numbers))


def _report(
    info: CaseInfo,
    record: CaseRecord,
    each: tuple[RankVerdict, ...],
    first: RankVerdict,
    headline: str,
    statements: dict[str, str],
) -> str:
    lines = [f"contract  {one}  {statements.get(one, '')}".rstrip() for one in info.contracts]
    lines += [
        f"case      {info.nodeid}",
        f"verdict   {headline}",
        f"time      {record.seconds:.2f} s of {record.limit:.0f} s",
    ]
    if record.limit == float("inf"):
        lines[-1] = f"time      {record.seconds:.2f} s, without a limit"
    if record.fault:
        reached = [one.rank for one in record.ranks if one.reached]
        lines.append(f"fault     {record.fault} ({f'reached on {_ranks(reached)}' if reached else 'not reached'})")
    order = sorted(each, key=lambda one: (one.rank != first.rank, one.kind in {"passed", "skipped"}, one.rank))
    for one in order:
        lines += ["", _rank_title(one, first), *_rank_body(one, record.ranks[one.rank])]
    return "\n".join(lines)


def _rank_title(one: RankVerdict, first: RankVerdict) -> str:
    cause = " (first cause)" if one.rank == first.rank else ""
    said = {
        "passed": "finished without complaint",
        "waiting": "was still running when the case was stopped",
        "peer": "lost a peer",
    }
    return f"=== rank {one.rank}{cause}: {said.get(one.kind, one.kind)} ==="


def _rank_body(one: RankVerdict, record: RankRecord) -> list[str]:
    if one.kind == "passed":
        return []
    lines = [one.summary] if one.phase is None else []
    shown = [phase for phase in record.phases if phase.kind not in {"passed"}]
    lines += [f"in {phase.when}:\n{phase.text or phase.summary}" for phase in shown]
    if record.stacks:
        lines += [f"--- Python stacks of rank {one.rank} ---", record.stacks.strip()]
    if record.collectives:
        lines += [f"--- last collectives of rank {one.rank}, the latest last ---", *record.collectives]
    if record.output.strip():
        lines += [f"--- output of rank {one.rank} ---", record.output.rstrip()]
    return lines

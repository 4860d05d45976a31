"""What a job that failed tells: the first cause, then what its peers saw of it."""

from __future__ import annotations

from collections.abc import Iterator

from hyper_parallel_tests.harness import job, processes, stacks
from hyper_parallel_tests.harness.symptoms import is_symptom

_TAIL = 4 * 2**10


def first_cause(done: job.Job) -> job.RankOfJob | None:
    """The rank that failed first by its own doing, None where none failed."""
    failed = [one for one in done.ranks if one.raised or one.died or one.stopped]
    return min(failed, key=_order, default=None)


def _order(one: job.RankOfJob) -> tuple[int, float, int]:
    """First what a rank did itself, in time; then what it lacks, or saw of a peer; last what it waited for."""
    if one.stopped:
        return (3 if job.waits_for_peers(one.collectives) else 2, 0.0, one.rank)
    if one.died:
        return (0, one.ended_at, one.rank)
    consequence = one.raised.kind == "not-offered" or (one.raised.kind == "error" and is_symptom(one.raised.said))
    return (1 if consequence else 0, one.raised.at, one.rank)


def told(done: job.Job, first: job.RankOfJob) -> str:
    """What each rank did, in words: the first cause in the first line and before the others."""
    rest = sorted((one for one in done.ranks if one is not first), key=lambda one: one.rank)
    said = _what(one=first, done=done).partition("\n")[0]
    lines = [f"rank {first.rank} of {len(done.ranks)} in {done.name}: {said}"]
    for one in [first, *rest]:
        cause = " (first cause)" if one is first else ""
        lines += ["", f"=== rank {one.rank} of {done.name}{cause}: {_title(one)} ===", *_body(one, done)]
    return "\n".join(lines)


def _title(one: job.RankOfJob) -> str:
    if one.stopped:
        return "was stopped"
    if one.died:
        return "died"
    if one.raised:
        symptom = one.raised.kind == "error" and is_symptom(one.raised.said)
        return "lost a peer" if symptom else one.raised.kind
    return "returned"


def _what(one: job.RankOfJob, done: job.Job) -> str:
    if one.stopped:
        return f"did not come to an end ({done.stopped}) and {job.whereabouts(one.stacks, one.collectives)}"
    if one.died:
        return f"was gone before its function returned: {processes.exit_text(one.exit)}"
    return one.raised.said if one.raised else "returned"


def _body(one: job.RankOfJob, done: job.Job) -> Iterator[str]:
    if one.raised:
        yield one.raised.traceback.rstrip()
    elif one.stopped or one.died:
        yield _what(one, done)
    if one.stacks.strip():
        yield f"--- Python stacks of rank {one.rank} ---"
        yield stacks.readable(one.stacks)
    if one.collectives:
        yield f"--- last collectives of rank {one.rank}, the latest last ---"
        yield from one.collectives
    if one.output.strip() and (one.raised or one.stopped or one.died):
        yield f"--- end of the output of rank {one.rank} ---"
        yield one.output[-_TAIL:].rstrip()

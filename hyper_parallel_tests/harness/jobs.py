"""Launches of their own that a case starts: "save and stop; start anew and load", a kill in the middle of a save.

A target whose cases start jobs has `jobs = True` (launcher: `--jobs`): one rank runs its cases, and each job has as
many fresh processes as it asks for, up to the target's cards, with a default process group, a `World` and an engine of
their own. Nothing of a job is left when `run` or `watch` returns.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from hyper_parallel_tests.harness import channel, job, job_report

if TYPE_CHECKING:
    from hyper_parallel_tests.harness.rank import Orders
    from hyper_parallel_tests.harness.starter import Starter
    from hyper_parallel_tests.harness.world import World

__all__ = ["Ended", "JobAssertion", "JobDied", "JobFailed", "JobHung", "most_cards", "run", "watch"]


@dataclass(frozen=True)
class Ended:
    """How a rank of a job ended.

    Attributes:
        result: what the function returned, None where it did not.
        error: the type and the text of the exception that it raised, empty for none.
        exit: the exit code of its process, negative for a signal: -9 for SIGKILL.
        output: what it and the libraries printed, torch's warnings too; of more than 32 KiB the end.
        traceback: of the exception, empty for none.
    """

    result: Any
    error: str
    exit: int
    output: str
    traceback: str = ""


class OfJob:
    """What all exceptions about jobs have: `kind`, the case's verdict, and `headline`, the first line."""

    kind = "error"

    @property
    def headline(self) -> str:
        return str(self).partition("\n")[0]


class JobFailed(OfJob, Exception):
    """A rank of a job raised, or the job could not be run."""


class JobDied(JobFailed):
    """A rank of a job was gone before its function had returned."""

    kind = "crash"


class JobHung(JobFailed):
    """A job did not come to an end within its limit."""

    kind = "hang"


class JobAssertion(OfJob, AssertionError):
    """An assertion failed in a rank of a job."""

    kind = "assertion"


def most_cards() -> int:
    """How many cards a job may have: those of the target.

    Raises:
        JobFailed: this target's cases start no jobs.
    """
    return _place().orders.options.cards


def run(world: World, function: Callable[..., Any], /, *args: Any, cards: int, limit: float | None = None) -> list[Any]:
    """Call `function(world, *args)` on each rank of a fresh launch; returns what it returned, a rank each.

    Args:
        world: the case's. The function gets the job's.
        function: of a module, or a `functools.partial` of one: it travels to other processes by its name.
        args: whatever can be pickled, as the results.
        cards: ranks of the job.
        limit: seconds that it may take; default: as long as the case may.

    Raises:
        JobAssertion: an assertion failed in a rank that failed by its own doing, the first in time.
        EngineUnsupported: the engine lacks what the function asks for.
        JobFailed: a rank raised anything else; JobDied: it was gone; JobHung: the limit was reached. All of them say
            what each rank did, the first cause before what its peers saw of it.
        TypeError, ValueError: what was asked for cannot be a job.
    """
    done = _do(world, function, args, cards, limit, settle=job.SETTLE_S)
    _raise_first_cause(done)
    return [_result(one) for one in done.ranks]


def watch(
    world: World, function: Callable[..., Any], /, *args: Any, cards: int, limit: float | None = None
) -> list[Ended]:
    """As `run`, but tells how each rank ended, whatever that was: for ranks that are killed or must fail.

    The others go on when one has failed or died, until all have ended. An assertion in the function is told in `error`
    too: it is for the case to judge.

    Raises:
        JobHung: the limit was reached.
        EngineUnsupported: the engine lacks what the function asks for.
        JobFailed: the job could not be run.
        TypeError, ValueError: what was asked for cannot be a job.
    """
    done = _do(world, function, args, cards, limit, settle=float("inf"))
    if done.stopped:
        _raise_first_cause(done)
    _raise_declined(done.ranks)
    return [
        Ended(
            result=_result(one) if one.returned else None,
            error=one.raised.said if one.raised else "",
            exit=one.exit,
            output=one.output,
            traceback=one.raised.traceback if one.raised else "",
        )
        for one in done.ranks
    ]


# -- the place in a rank


@dataclass
class _Place:
    """What a rank has to start jobs with."""

    starter: Starter
    orders: Orders
    on_reached: Callable[[str], None]
    started: int = 0
    running: job.Job | None = None


_here: _Place | None = None


def serve(starter: Starter, orders: Orders, on_reached: Callable[[str], None]) -> None:
    """Let this rank's cases start jobs; `on_reached` is told of a fault that takes effect in one."""
    global _here
    _here = _Place(starter, orders, on_reached)


def begin_case() -> None:
    """Number the jobs from 1 again."""
    if _here is not None:
        _here.started = 0


def starter_is_gone() -> bool:
    """Whether this rank is to start jobs and cannot any more."""
    return _here is not None and _here.starter.gone


class Running:
    """Tells of the job that runs at the moment, for a rank's probes."""

    def evidence(self) -> channel.Evidence | None:
        return None if _here is None or _here.running is None else _here.running.evidence()


def _place() -> _Place:
    if _here is None:
        raise JobFailed(
            "no job can be started here: a target whose cases start jobs has jobs = True in its BUILD file, a launch "
            "by hand --jobs; and a job starts none itself"
        )
    return _here


def _do(
    world: World, function: Callable[..., Any], args: tuple[Any, ...], cards: int, limit: float | None, settle: float
) -> job.Job:
    place = _place()
    _check(world, function, cards, limit, place)
    task = _packed(function, args)
    place.started += 1
    number = place.started
    try:
        with job.Job(place.starter, place.orders, place.on_reached, number, cards, task, _module_of(function)) as done:
            place.running = done
            done.follow(limit, settle)
    except job.StarterGone as error:
        raise JobFailed(f"the process that starts jobs was gone before job {number} was over: {error}") from None
    finally:
        place.running = None
    return done


# -- what was asked for


def _check(world: World, function: Callable[..., Any], cards: int, limit: float | None, place: _Place) -> None:
    from hyper_parallel_tests.harness.world import World

    if not isinstance(world, World):
        raise TypeError(f"the first argument is the case's world, then comes the function; found {world!r:.100}")
    if not callable(function):
        raise TypeError(f"a job calls a function, and this is none: {function!r:.100}")
    most = place.orders.options.cards
    if not isinstance(cards, int) or isinstance(cards, bool) or not 1 <= cards <= most:
        raise ValueError(
            f"a job of this target has 1 to {most} cards, found cards={cards!r}: ask for fewer, or give the target "
            "more (its name says how many; --cards by hand)"
        )
    if limit is not None and not limit > 0:
        raise ValueError(f"a limit is a number of seconds above 0, found {limit!r}")
    if place.running is not None:
        raise JobFailed(f"{place.running.name} still runs: a rank starts one job at a time")


def _packed(function: Callable[..., Any], args: tuple[Any, ...]) -> bytes:
    from hyper_parallel_tests.harness.judging import clean

    try:
        return clean.pack((function, args))
    except (AttributeError, TypeError, pickle.PicklingError) as error:
        raise TypeError(
            f"a job's function and arguments travel to other processes, and this cannot be pickled: {error}; give it "
            "functions of modules and functools.partial in place of lambdas and inner functions"
        ) from error


def _module_of(function: Any) -> str:
    while hasattr(function, "func"):
        function = function.func
    return getattr(function, "__module__", "") or ""


# -- what became of it


def _result(one: job.RankOfJob) -> Any:
    from hyper_parallel_tests.harness.judging import clean

    return clean.unpack(one.returned.result)


def _raise_first_cause(done: job.Job) -> None:
    """Raise what ended the job, where that was not the return of its function on all ranks."""
    first = job_report.first_cause(done)
    if first is None:
        return
    if first.raised and first.raised.kind == "not-offered":
        _raise_declined([first])
    if first.died:
        kind = JobDied
    elif first.raised:
        kind = JobAssertion if first.raised.kind == "assertion" else JobFailed
    else:
        kind = JobHung if done.stopped in {job.LIMIT, job.PEER_FAILED} else JobFailed
    raise kind(job_report.told(done, first))


def _raise_declined(found: list[job.RankOfJob]) -> None:
    for one in found:
        if one.raised and one.raised.declined:
            from hyper_parallel_tests.engines.port import EngineUnsupported

            raise EngineUnsupported(*one.raised.declined)

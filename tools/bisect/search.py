"""The search: both ends are tried first, then git's bisection goes on by what the contract's cases do."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from tools.bisect.history import Commit, History
from tools.report.results import Case

__all__ = ["Answer", "EndsAreWrong", "NoAnswer", "Survey", "search"]


class EndsAreWrong(Exception):
    """The good revision is not good or the bad one not bad."""


class NoAnswer(Exception):
    """Too many revisions cannot be judged."""


@dataclass(frozen=True)
class Survey:
    """What the contract's cases did on one revision.

    Attributes:
        cases: by node id.
        trouble: why there are none: what the build or the launcher said.
        cached: whether nothing had to be run for it.
        seconds: how long it took.
    """

    cases: Mapping[str, Case] = field(default_factory=dict)
    trouble: str = ""
    cached: bool = False
    seconds: float = 0.0

    @property
    def broken(self) -> dict[str, Case]:
        """The cases that the engine fails, whether its expectations know it or not."""
        return {nodeid: case for nodeid, case in self.cases.items() if case.shows_a_defect}

    @property
    def held(self) -> set[str]:
        """The cases that pass, whether they were expected to or not."""
        return {nodeid for nodeid, case in self.cases.items() if case.verdict in {"passed", "unexpectedly-held"}}

    def of(self, nodeids: Collection[str]) -> Survey:
        """The same of some cases only."""
        return Survey(
            {nodeid: case for nodeid, case in self.cases.items() if nodeid in nodeids},
            self.trouble,
            self.cached,
            self.seconds,
        )

    @property
    def told(self) -> str:
        """What they did, in words."""
        if not self.cases:
            return f"cannot be judged: {self.trouble or 'no case ran'}"
        counts = {"broken": len(self.broken), "hold": len(self.held)}
        others = [case for nodeid, case in self.cases.items() if nodeid not in self.broken and nodeid not in self.held]
        said = [f"{number} of {len(self.cases)} cases {what}" for what, number in counts.items() if number]
        said += [f"{len(others)} {others[0].verdict}: {others[0].headline}"] if others else []
        return ", ".join(said)

    @property
    def cost(self) -> str:
        return f"{self.seconds:.1f} s{', cached' if self.cached else ''}"


@dataclass(frozen=True)
class Answer:
    """What was found.

    Attributes:
        commit: the first revision that breaks the contract or, where the bad end is the older one, that mends it.
        mends: which of the two.
        cases: those that break there, or were broken until then.
    """

    commit: Commit
    mends: bool
    cases: Mapping[str, Case]


def search(
    history: History,
    survey: Callable[[Path], Survey],
    good: Commit,
    bad: Commit,
    *,
    first_parent: bool = False,
    tell: Callable[[str], None] = print,
) -> Answer:
    """Find the first revision on which cases fail that hold on the good revision and fail on the bad one.

    Where the bad revision is the older one, it is the first on which they all hold.

    A revision counts as bad where one of these cases is broken, as good where all of them hold; one that cannot be
    built, or on which they are not offered, is left out, as `git bisect skip` does.

    Args:
        history: of the engine.
        survey: runs the contract's cases on the work tree that it is given.
        good, bad: where the contract holds, and where it is broken; the one leads to the other.
        first_parent: whether only the main line counts.
        tell: called with each line of progress.

    Raises:
        EndsAreWrong: the contract is broken on the good revision, holds on the bad one, or cannot be judged on one.
        NoAnswer: only revisions that cannot be judged are left.
    """
    known: dict[str, Survey] = {}

    def try_out(commit: Commit, what: str = "") -> Survey:
        if commit.id not in known:
            history.check_out(commit)
            known[commit.id] = survey(history.tree)
        if what:
            tell(f"{what:<5} {commit}: {known[commit.id].told} ({known[commit.id].cost})")
        return known[commit.id]

    watched = _watched(try_out(bad, "bad"), try_out(good, "good"), good, bad)
    mends = history.is_ancestor(bad, good)
    ends = {"good": "newer", "bad": "older"} if mends else {"good": "older", "bad": "newer"}
    older, newer = (bad, good) if mends else (good, bad)
    progress = history.start(older, newer, first_parent=first_parent)
    while not progress.over:
        commit = history.head()
        found = try_out(commit).of(watched)
        word = _word(found, watched)
        tell(f"{word:<5} {commit}: {found.told} ({found.cost}); {progress.left} left, about {progress.steps} steps")
        progress = history.mark(ends.get(word, "neither"))
    if progress.first is None:
        listed = "\n".join(f"    {commit}" for commit in progress.suspects)
        raise NoAnswer(f"only revisions that cannot be judged are left; the answer is among\n{listed}")
    return Answer(progress.first, mends, try_out(bad if mends else progress.first).of(watched).broken)


def _watched(at_bad: Survey, at_good: Survey, good: Commit, bad: Commit) -> set[str]:
    """The cases that tell: broken on the bad revision, and known to hold on the good one."""
    if not at_bad.broken:
        raise EndsAreWrong(f"the bad revision {bad} is not bad: {at_bad.told}")
    if at_good.broken:
        first = next(iter(at_good.broken.values()))
        raise EndsAreWrong(
            f"the good revision {good} is broken already: {first.nodeid}: {first.headline}\n"
            "Give an older one, or --case= with a case that holds there."
        )
    watched = at_bad.broken.keys() & at_good.held
    if not watched:
        raise EndsAreWrong(
            f"the good revision {good} tells nothing of the cases that fail on the bad one: {at_good.told}\n"
            "Give a later one, on which the engine has what they need."
        )
    return watched


def _word(found: Survey, watched: Collection[str]) -> str:
    """`good`, `bad`, or `skip` for a revision that cannot be judged."""
    if found.broken:
        return "bad"
    return "good" if found.held == set(watched) else "skip"

"""What engines promise and keep: for each contract and each run, what its cases did.

A run is one engine at one version. Rendering is elsewhere (engines_pages.py), so that other pages can start from here.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import PurePosixPath

from packaging.version import InvalidVersion, Version

from hyper_parallel_tests.contract_check.tree import Tree
from hyper_parallel_tests.harness.contracts import Contract
from tools.report.results import Case

__all__ = ["Cell", "MixedRun", "Row", "Run", "rows"]

HOLDS, IN_PART, BROKEN = "holds", "holds in part", "broken"
NOT_OFFERED, NOT_JUDGED, NOT_RUN = "not offered", "not judged", "not run"
WORDS = (HOLDS, IN_PART, BROKEN, NOT_OFFERED, NOT_JUDGED, NOT_RUN)
"""What can be said of a contract, in the order of tables."""

_HELD = {"passed", "unexpectedly-held"}


class MixedRun(ValueError):
    """What was given as one run is of several engines."""


@dataclass(frozen=True)
class Run:
    """What one engine did at one version.

    Attributes:
        name: how a person called it, else the engine and its version.
        cases: those that judge contracts.
    """

    name: str
    cases: tuple[Case, ...]

    @classmethod
    def of(cls, cases: Iterable[Case], name: str = "", where: str = "this run") -> Run:
        """A run of the cases that judge contracts of an engine.

        Raises:
            MixedRun: they ran on several engines; `where` says in the message what holds them.
        """
        judging = tuple(case for case in cases if case.judges)
        engines = sorted({case.engine for case in judging if case.engine})
        if len(engines) > 1:
            raise MixedRun(
                f"{where} holds results of {' and of '.join(engines)}: give each engine's run by itself, "
                "for example by the build events of its own `bazel test`"
            )
        versions = sorted({case.engine_version for case in judging if case.engine_version}, key=_order)
        found = " ".join([*engines, *versions[-1:]])
        return cls(name or found or "no engine", judging)


@dataclass(frozen=True)
class Cell:
    """What one contract's cases did in one run.

    Attributes:
        cases: each case that ran once; of several results of one case the worst.
        not_run: `file::function` of cases of the tree that have no result in this run.
    """

    cases: tuple[Case, ...]
    not_run: tuple[str, ...] = ()

    @cached_property
    def broken(self) -> list[Case]:
        return [case for case in self.cases if case.shows_a_defect]

    @cached_property
    def held(self) -> list[Case]:
        return [case for case in self.cases if case.verdict in _HELD]

    @cached_property
    def not_offered(self) -> list[Case]:
        return [case for case in self.cases if case.verdict == "not-offered"]

    @property
    def word(self) -> str:
        """One of WORDS. One broken case breaks a contract; it holds only if all of its cases ran and held."""
        if not self.cases:
            return NOT_RUN
        if self.broken:
            return BROKEN
        if len(self.held) == len(self.cases) and not self.not_run:
            return HOLDS
        if self.held:
            return IN_PART
        return NOT_OFFERED if len(self.not_offered) == len(self.cases) else NOT_JUDGED

    @property
    def text(self) -> str:
        """The word; where the cases part, how many did what; what the engine's expectations do not know."""
        if not self.cases:
            return self.word
        of_word = {BROKEN: self.broken, NOT_OFFERED: self.not_offered, NOT_JUDGED: self._unjudged}
        mine = of_word.get(self.word, self.held)
        others = {"hold": self.held, "not offered": self.not_offered, "not judged": self._unjudged}
        said = [f"{len(of)} {what}" for what, of in others.items() if of and of is not mine]
        said += [f"{len(self.not_run)} not run"] * bool(self.not_run)
        said = [f"{len(mine)} of {len(self.cases)} cases", *said] if said else []
        for what, new in (
            ("newly broken", [case for case in self.broken if case.newly_broken]),
            ("newly fixed", [case for case in self.held if case.newly_fixed]),
        ):
            said += [f"{len(new)} {what}"] * bool(new)
        return f"{self.word} ({', '.join(said)})" if said else self.word

    @cached_property
    def _unjudged(self) -> list[Case]:
        known = {*self.broken, *self.held, *self.not_offered}
        return [case for case in self.cases if case not in known]


@dataclass(frozen=True)
class Row:
    """One contract, with a cell for each run."""

    contract: Contract
    cells: tuple[Cell, ...]


def rows(tree: Tree, runs: Iterable[Run], domains: Collection[str] = (), layers: Collection[str] = ()) -> list[Row]:
    """The table: all contracts of the tree in the order of their files, so that one that was not run shows.

    Args:
        tree: the product's package.
        runs: the columns.
        domains: folders to tell of; empty means all.
        layers: layers of contracts to tell of; empty means all.
    """
    by_contract = [_by_contract(run.cases) for run in runs]
    functions: dict[str, list[str]] = {}
    for case in tree.domain_cases:
        for contract in case.contracts:
            functions.setdefault(contract, []).append(_function(f"{case.source.path.as_posix()}::{case.name}"))
    return [
        Row(contract, tuple(_cell(functions.get(contract.id, []), of.get(contract.id, {})) for of in by_contract))
        for contract in tree.contracts.values()
        if (not domains or contract.path.parent.name in domains) and (not layers or contract.layer in layers)
    ]


def _by_contract(cases: Iterable[Case]) -> dict[str, dict[str, Case]]:
    """Contract -> node id -> what the case did, the worst of several results."""
    found: dict[str, dict[str, Case]] = {}
    for case in cases:
        for contract in case.contracts:
            kept = found.setdefault(contract, {}).setdefault(case.nodeid, case)
            if _badness(case) > _badness(kept):
                found[contract][case.nodeid] = case
    return found


def _badness(case: Case) -> int:
    return 2 * case.shows_a_defect + (case.verdict not in _HELD)


def _cell(functions: Iterable[str], results: Mapping[str, Case]) -> Cell:
    ran = {_function(nodeid) for nodeid in results}
    return Cell(tuple(results.values()), tuple(one for one in functions if one not in ran))


def _function(nodeid: str) -> str:
    """`folder/file::function` of a case: what a report and the tree both know."""
    file, _, name = nodeid.partition("::")
    return f"{'/'.join(PurePosixPath(file).parts[-2:])}::{name.partition('[')[0]}"


def _order(version: str) -> tuple[bool, Version | str]:
    """Sorts versions, those that follow no rule before all others."""
    try:
        return True, Version(version)
    except InvalidVersion:
        return False, version

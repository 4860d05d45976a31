"""A tree as the checks see it: its test files, contracts, faults and expectations."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from hyper_parallel_tests.contract_check.sources import TEST_FILE, Case, Source, Sources, cases_of
from hyper_parallel_tests.harness.contracts import Broken, Contract, load_contracts, load_expectations

__all__ = ["FaultEntry", "Tree"]

_JUDGING = ("domains", "interactions", "endurance")
_FAULT_MECHANISM = {"__init__.py", "catalogue.py", "patch.py"}


@dataclass(frozen=True)
class FaultEntry:
    """What a fault declares.

    Attributes:
        where: `path:line: id`, as messages begin.
        catalogue: name of the module that holds it.
        layer: the lowest layer that must catch it.
        must_fail: contracts that must fail.
        unreadable: what about it is not literal, empty where all is.
    """

    where: str
    catalogue: str
    layer: str
    must_fail: tuple[str, ...]
    unreadable: str = ""


@dataclass(frozen=True)
class Tree:
    """A package folder to be checked."""

    root: Path

    @cached_property
    def sources(self) -> Sources:
        return Sources(self.root)

    @cached_property
    def contracts(self) -> dict[str, Contract]:
        return load_contracts(self.root)

    @cached_property
    def test_paths(self) -> list[Path]:
        """Every file that pytest would take for tests, well named or not."""
        return sorted({*self.root.rglob("*_test.py"), *self.root.rglob("test_*.py")})

    @cached_property
    def test_files(self) -> list[Source]:
        """The test files whose name tells a layer; the others have to be renamed before anything else."""
        return [self.sources.read(path) for path in self.test_paths if TEST_FILE.fullmatch(path.name)]

    @cached_property
    def cases(self) -> list[Case]:
        """The test functions of all folders."""
        return [case for source in self.test_files for case in cases_of(source)]

    @property
    def domain_cases(self) -> list[Case]:
        """The test functions of folders with contracts: they judge engines and not the net itself."""
        folders = {contract.path.parent for contract in self.contracts.values()}
        return [case for case in self.cases if case.source.path.parent in folders]

    @cached_property
    def judging_sources(self) -> list[Source]:
        """The files that judge engines, with what their cases share."""
        misnamed = set(self.test_paths) - {source.path for source in self.test_files}
        paths = {path for folder in _JUDGING for path in (self.root / folder).rglob("*.py")}
        return [self.sources.read(path) for path in sorted(paths - misnamed)]

    @cached_property
    def faults(self) -> list[FaultEntry]:
        found = []
        for path in sorted((self.root / "faults").glob("*.py")):
            if path.name not in _FAULT_MECHANISM and path not in self.test_paths:
                found += _faults_of(self.sources.read(path))
        return found

    @cached_property
    def expectations(self) -> list[tuple[str, Broken]]:
        """(path of the file, entry) of every engine."""
        return [
            (entry.path.relative_to(self.root).as_posix(), entry)
            for package in sorted((self.root / "engines").glob("*/expectations"))
            for entry in load_expectations(package.parent)
        ]


def _faults_of(source: Source) -> Iterator[FaultEntry]:
    for node in ast.walk(source.tree):
        if not isinstance(node, ast.Call) or source.dotted(node.func).split(".")[-1] != "fault":
            continue
        given = {keyword.arg: keyword.value for keyword in node.keywords}
        name = _text(source, given.get("id")) or "a fault without id"
        where = f"{source.shown}:{node.lineno}: {name}"
        listed = given.get("must_fail")
        if isinstance(listed, ast.Name) and source.value(listed.id):
            listed = source.value(listed.id)[1]
        ids = [_text(source, one) for one in listed.elts] if isinstance(listed, (ast.List, ast.Tuple)) else [""]
        problem = "" if ids and all(ids) else "must_fail must be a list of literal contract ids"
        yield FaultEntry(where, source.path.stem, _text(source, given.get("layer")), tuple(ids), problem)


def _text(source: Source, node: ast.expr | None) -> str:
    if isinstance(node, ast.Name) and source.value(node.id):
        node = source.value(node.id)[1]
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else ""

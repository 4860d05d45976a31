"""The rules for test files, contracts, faults and expectations. Each check returns what is wrong, one line
each.

A line begins with the place, as `domains/collectives/l1_p2p_test.py:12: test_ring:`, and ends with what to
do.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from hyper_parallel_tests.contract_check import build_files, skips, tolerances
from hyper_parallel_tests.contract_check.sources import (
    PACKAGE,
    TEST_FILE,
    Case,
    Function,
    Source,
    Sources,
    cases_of,
)
from hyper_parallel_tests.harness.contracts import (
    LAYERS,
    Broken,
    Contract,
    ContractError,
    load_contracts,
    load_expectations,
)

__all__ = ["CHECKS", "Tree"]

_REPRODUCTION_LINES = 30


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
    def test_files(self) -> list[Source]:
        """Every file that pytest would take for tests, well named or not."""
        paths = {*self.root.rglob("*_test.py"), *self.root.rglob("test_*.py")}
        return [self.sources.read(path) for path in sorted(paths)]

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
    def faults(self) -> list[FaultEntry]:
        found = []
        for path in sorted((self.root / "faults").glob("*.py")):
            found += _faults_of(self.sources.read(path))
        return found

    @cached_property
    def expectations(self) -> list[tuple[str, Broken]]:
        """(path of the file, entry) of every engine."""
        return [
            (path.relative_to(self.root).as_posix(), entry)
            for path in sorted((self.root / "engines").glob("*/expectations.toml"))
            for entry in load_expectations(path.parent)
        ]


@dataclass(frozen=True)
class FaultEntry:
    """What a fault declares; `unreadable` says what about it is not literal."""

    where: str
    id: str
    layer: str
    must_fail: tuple[str, ...]
    unreadable: str = ""


def contracts_are_well_formed(tree: Tree) -> Iterator[str]:
    """Every contracts.toml and expectations.toml can be read, and every domain folder has contracts."""
    for load in (lambda: tree.contracts, lambda: tree.expectations):
        try:
            load()
        except ContractError as error:
            yield from str(error).splitlines()
    for folder in sorted(path for path in (tree.root / "domains").glob("*") if any(path.glob("*_test.py"))):
        if not (folder / "contracts.toml").is_file():
            yield f"domains/{folder.name}: it has tests but no contracts.toml: write down what they promise"


def every_contract_has_a_case(tree: Tree) -> Iterator[str]:
    """Every contract is cited by a case in a file of its layer."""
    cited = {(one, case.layer) for case in tree.domain_cases for one in case.contracts}
    for contract in tree.contracts.values():
        if (contract.id, contract.layer) not in cited:
            path = contract.path.relative_to(tree.root).as_posix()
            yield f"{path}: {contract.id}: no case in a file {contract.layer}_*_test.py cites it: write one"


def every_case_cites_contracts(tree: Tree) -> Iterator[str]:
    """Every case of a domain cites contracts that exist, literally, one of its own layer among them."""
    for case in tree.domain_cases:
        for text in case.unreadable:
            yield f"{case.where}: contract({text}) is no literal text: write the id itself"
        for one in case.contracts:
            if one not in tree.contracts:
                yield f"{case.where}: contract {one} is in no contracts.toml: correct the id or add it"
        if not case.contracts:
            yield f'{case.where}: cites no contract: add @contract("<id>")'
        elif case.layer not in {tree.contracts[one].layer for one in case.contracts if one in tree.contracts}:
            yield f"{case.where}: cites no contract of layer {case.layer}: move it to the file of its layer"
    for source in {case.source.path: case.source for case in tree.domain_cases}.values():
        for name in source.values:
            if name.startswith("test"):
                yield f"{source.shown}: {name} is a case by assignment: write `def {name}` with its contract"


def every_file_has_a_target(tree: Tree) -> Iterator[str]:
    """Every test file is called l<k>_<topic>_test.py and belongs to a layer_test target of its layer only."""
    for source in tree.test_files:
        layer = TEST_FILE.fullmatch(source.path.name)
        if layer is None:
            yield f"{source.shown}: call it l<k>_<topic>_test.py, after its layer"
            continue
        build_file = build_files.build_file_of(source.path, tree.root)
        if build_file is None:
            yield f"{source.shown}: no BUILD.bazel above it: add one with a layer_test target"
            continue
        try:
            targets = build_files.layer_tests(build_file)
        except build_files.Unreadable as error:
            yield f"{source.shown}: its BUILD file is unreadable at {error}"
            continue
        owners = [target for target in targets if source.path in target.files]
        if not owners:
            yield f"{source.shown}: no layer_test lists it, so it never runs: add it to one of {layer[1]}"
        for target in owners:
            if target.layer != layer[1]:
                yield f"{source.shown}: it is of {layer[1]} by its name, but listed in {target.name}: move it"


def no_literal_tolerance(tree: Tree) -> Iterator[str]:
    """No test file has a tolerance of its own: numbers come from the ledger."""
    for source in tree.test_files:
        for node, what in tolerances.literals(source):
            yield f"{source.shown}:{node.lineno}: {what}: take it from the ledger, as in ledger[...]"


def no_skip(tree: Tree) -> Iterator[str]:
    """No case is skipped without condition or reason, and none is an xfail."""
    for source in tree.test_files:
        for node, what in skips.found(source):
            yield f"{source.shown}:{node.lineno}: {what}"


def every_case_asserts(tree: Tree) -> Iterator[str]:
    """Every case can fail by an assertion: its own, or one in a function of this tree that it calls."""
    for case in tree.cases:
        if not _asserts(case.source, case.node, set()):
            yield f"{case.where}: asserts nothing, so it cannot fail: state what must hold"


def _asserts(source: Source, function: Function, seen: set[Function]) -> bool:
    if function in seen:
        return False
    seen.add(function)
    for node in ast.walk(function):
        if isinstance(node, ast.Assert) and not _always_true(node.test):
            return True
        if isinstance(node, ast.Call):
            name = source.dotted(node.func)
            last = node.func.attr if isinstance(node.func, ast.Attribute) else name.split(".")[-1]
            if last.startswith("assert_") or name in {"pytest.raises", "pytest.warns", "pytest.fail"}:
                return True
            called = source.function(node.func.id) if isinstance(node.func, ast.Name) else None
            if called is not None and _asserts(*called, seen):
                return True
    return False


def _always_true(test: ast.expr) -> bool:
    return (isinstance(test, ast.Constant) and bool(test.value)) or (isinstance(test, ast.Tuple) and bool(test.elts))


def every_contract_has_a_fault(tree: Tree) -> Iterator[str]:
    """Every contract is in the must_fail of a fault; faults name contracts that exist, of their layer."""
    proven = {one for fault in tree.faults for one in fault.must_fail}
    for contract in tree.contracts.values():
        if contract.id not in proven:
            path = contract.path.relative_to(tree.root).as_posix()
            yield f"{path}: {contract.id}: no fault has it in must_fail, so nothing shows that it can fail"
    for fault in tree.faults:
        if fault.unreadable:
            yield f"{fault.where}: {fault.unreadable}"
            continue
        for one in fault.must_fail:
            if one not in tree.contracts:
                yield f"{fault.where}: must_fail names {one}, which is in no contracts.toml"
        layers = [tree.contracts[one].layer for one in fault.must_fail if one in tree.contracts]
        lowest = min(layers, key=LAYERS.index, default=fault.layer)
        if lowest != fault.layer:
            yield f"{fault.where}: its layer is {fault.layer}, but the lowest in must_fail is {lowest}"


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
        yield FaultEntry(where, name, _text(source, given.get("layer")), tuple(ids), problem)


def _text(source: Source, node: ast.expr | None) -> str:
    if isinstance(node, ast.Name) and source.value(node.id):
        node = source.value(node.id)[1]
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else ""


def expectations_are_real(tree: Tree) -> Iterator[str]:
    """Expectations name contracts and cases that exist, and their reproductions are short scripts."""
    names = {f"{PACKAGE}/{case.source.shown}::{case.name}" for case in tree.cases}
    for path, entry in tree.expectations:
        if entry.contract and entry.contract not in tree.contracts:
            yield f"{path}: contract {entry.contract} is in no contracts.toml"
        if entry.case and not any(name.endswith(f"/{entry.case.split('[')[0]}") for name in names):
            yield f"{path}: case {entry.case} does not exist"
        lines = len(entry.reproduction.read_text(encoding="utf-8").splitlines())
        if not 0 < lines < _REPRODUCTION_LINES:
            yield f"{path}: {entry.reproduction.name} has {lines} lines: keep it under {_REPRODUCTION_LINES}"


CHECKS: tuple[Callable[[Tree], Iterator[str]], ...] = (
    contracts_are_well_formed,
    every_contract_has_a_case,
    every_case_cites_contracts,
    every_file_has_a_target,
    no_literal_tolerance,
    no_skip,
    every_case_asserts,
    every_contract_has_a_fault,
    expectations_are_real,
)

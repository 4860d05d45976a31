"""The rules for what an engine is known to do wrong: its expectations and their reproductions."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from hyper_parallel_tests.contract_check.sources import PACKAGE
from hyper_parallel_tests.contract_check.tree import Tree
from hyper_parallel_tests.harness.contracts import Broken

__all__ = ["every_reproduction_is_named", "expectations_are_real"]

_REPRODUCTION_LINES = 30


def expectations_are_real(tree: Tree) -> Iterator[str]:
    """Expectations name contracts and cases of their file's domain, and their reproductions are short scripts."""
    names = [f"{PACKAGE}/{case.source.shown}::{case.name}" for case in tree.cases]
    exists: dict[str, bool] = {}
    for path, entry in tree.expectations:
        function = entry.case.split("[")[0]
        if function not in exists:
            exists[function] = any(map(replace(entry, case=function).names, names))
        if entry.contract and entry.contract not in tree.contracts:
            yield f"{path}: contract {entry.contract} is in no contracts.toml"
        if entry.case and not exists[function]:
            yield f"{path}: case {entry.case} does not exist"
        if (domain := _domain_of(entry, tree)) != entry.path.stem:
            yield f"{path}: {entry.contract or entry.case} belongs in {domain}.toml, where its targets see it"
    for path, reproduction in sorted({(path, entry.reproduction) for path, entry in tree.expectations}):
        yield from _unfit_reproduction(path, reproduction)


def _domain_of(entry: Broken, tree: Tree) -> str:
    if entry.contract in tree.contracts:
        return tree.contracts[entry.contract].path.parent.name
    folder = entry.case.split("::")[0].split("/")[:-1]
    return folder[-1] if folder else entry.path.stem


def _unfit_reproduction(path: str, reproduction: Path) -> Iterator[str]:
    if not reproduction.is_file():
        yield f"{path}: {reproduction.name} does not exist; a reproduction stands beside it"
        return
    lines = len(reproduction.read_text(encoding="utf-8").splitlines())
    if not 0 < lines < _REPRODUCTION_LINES:
        yield f"{path}: {reproduction.name} has {lines} lines: keep it under {_REPRODUCTION_LINES}"


def every_reproduction_is_named(tree: Tree) -> Iterator[str]:
    """A reproduction whose entry is gone goes with it."""
    named = {entry.reproduction for _, entry in tree.expectations}
    for path in sorted((tree.root / "engines").glob("*/expectations/_broken_*.py")):
        if path not in named:
            yield f"{path.relative_to(tree.root).as_posix()}: no entry names it: remove it, or enter what it shows"

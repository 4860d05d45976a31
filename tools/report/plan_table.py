"""From plan to assertion: for each contract its source, targets, cases and the lines at which they can fail.

Everything is read from the contracts.toml files, the test files and the BUILD files; nothing is written by hand.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path

from hyper_parallel_tests.contract_check import build_files
from hyper_parallel_tests.contract_check.assertions import assertions
from hyper_parallel_tests.contract_check.sources import Case
from hyper_parallel_tests.contract_check.tree import Tree
from hyper_parallel_tests.harness.contracts import Contract, plan_cases

__all__ = ["Row", "holes", "markdown", "rows"]


@dataclass(frozen=True)
class Row:
    """One case of one contract.

    Attributes:
        contract: what it promises.
        case: `file::function` in the domain's folder, empty where the contract has none.
        layer: of the case's file.
        targets: labels of the layer_test targets that run it.
        assertions: lines of the case that can fail; `file:line` for those of functions that it calls elsewhere.
    """

    contract: Contract
    case: str = ""
    layer: str = ""
    targets: tuple[str, ...] = ()
    assertions: tuple[str, ...] = ()

    @property
    def problem(self) -> str:
        """What the row lacks, empty where it lacks nothing."""
        if not self.case:
            return "no case"
        if not self.targets:
            return f"{self.case} is in no target"
        return "" if self.assertions else f"{self.case} asserts nothing"


def rows(tree: Tree, domains: Collection[str] = (), layers: Collection[str] = ()) -> list[Row]:
    """The table: contracts in the order of their files, each with its cases in the order of theirs.

    Args:
        tree: the product's package.
        domains: folders to tell of; empty means all.
        layers: layers of contracts to tell of; empty means all.

    Raises:
        build_files.Unreadable: a BUILD file cannot be worked out.
    """
    found = []
    targets = _targets_of_files(tree)
    for contract in tree.contracts.values():
        if domains and contract.path.parent.name not in domains or layers and contract.layer not in layers:
            continue
        cases = [case for case in tree.domain_cases if contract.id in case.contracts]
        found += [_row(contract, case, targets) for case in cases] or [Row(contract)]
    return found


def holes(table: list[Row], layers: Collection[str] = (), *, whole: bool = True) -> list[str]:
    """What is missing between what is planned (S1, scenarios, long runs) and assertions, one line each.

    Args:
        table: from `rows`.
        layers: as for `rows`.
        whole: whether the table has all domains, so that a plan case without a contract is missing.
    """
    cases = plan_cases()
    planned = [row for row in table if row.contract.id in cases or re.search(r"\bS1\b", row.contract.source)]
    found = [f"{row.contract.id}: {row.problem}" for row in planned if row.problem]
    for contract in dict.fromkeys(row.contract for row in planned):
        mine = [row for row in planned if row.contract is contract and row.case]
        if mine and not any(row.layer == contract.layer for row in mine):
            found.append(f"{contract.id}: no case of its layer, {contract.layer}")
    if whole:
        known = {row.contract.id for row in table}
        wanted = [one for one, layer in cases.items() if not layers or layer in layers]
        found += [f"{one}: no contract" for one in wanted if one not in known]
    return found


def markdown(table: list[Row], missing: list[str]) -> str:
    """The table, then the holes."""
    lines = [
        "| plan | contract | target | case | assertions at |",
        "|---|---|---|---|---|",
        *(f"| {' | '.join(_cells(row))} |" for row in table),
        "",
        f"{len({row.contract.id for row in table})} contracts, {sum(bool(row.case) for row in table)} cases",
        "",
        f"## {len(missing)} hole{'' if len(missing) == 1 else 's'}",
        "",
        *(f"- {one}" for one in missing),
    ]
    return "\n".join(lines).rstrip() + "\n"


def _cells(row: Row) -> Iterator[str]:
    domain = row.contract.path.parent.name
    yield row.contract.source
    yield row.contract.id
    yield ", ".join(f"`{target}`" for target in row.targets) or "none"
    yield f"`{domain}/{row.case}`" if row.case else "none"
    yield ", ".join(row.assertions) or "none"


def _targets_of_files(tree: Tree) -> dict[Path, list[str]]:
    """Test file -> labels of the targets that run it."""
    found: dict[Path, list[str]] = {}
    for path in build_files.all_below(tree.root):
        for target in build_files.layer_tests(path):
            for file in target.files:
                found.setdefault(file, []).append(target.label(tree.root))
    return found


def _row(contract: Contract, case: Case, targets: dict[Path, list[str]]) -> Row:
    places = sorted({(source is not case.source, source.path.name, line) for source, line in _assertions(case)})
    return Row(
        contract,
        case=f"{case.source.path.name}::{case.name}",
        layer=case.layer,
        targets=tuple(targets.get(case.source.path, ())),
        assertions=tuple(f"{name}:{line}" if elsewhere else str(line) for elsewhere, name, line in places),
    )


def _assertions(case: Case) -> Iterator[tuple[object, int]]:
    return assertions(case.source, case.node)

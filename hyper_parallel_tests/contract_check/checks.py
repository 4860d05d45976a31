"""The rules for test files, contracts, faults and expectations. Each check returns what is wrong, one line each.

A line begins with the place, as `domains/collectives/l1_p2p_test.py:12: test_ring:`, and ends with what to do.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from hyper_parallel_tests.contract_check import build_files, skips, tolerances
from hyper_parallel_tests.contract_check.assertions import assertions
from hyper_parallel_tests.contract_check.expectations import every_reproduction_is_named, expectations_are_real
from hyper_parallel_tests.contract_check.features import every_feature_is_mapped
from hyper_parallel_tests.contract_check.sources import TEST_FILE
from hyper_parallel_tests.contract_check.tree import Tree
from hyper_parallel_tests.harness.contracts import CONTRACT_FILES, LAYERS, ContractError
from hyper_parallel_tests.harness.judging.tolerances import LedgerError
from hyper_parallel_tests.harness.judging.tolerances import load as load_ledger

__all__ = ["CHECKS", "problems", "report"]

Check = Callable[[Tree], Iterator[str]]


def contracts_are_well_formed(tree: Tree) -> Iterator[str]:
    """Every file of contracts and expectations can be read, and every domain folder has contracts."""
    for load in (lambda: tree.contracts, lambda: tree.expectations):
        try:
            load()
        except ContractError as error:
            yield from str(error).splitlines()
    folders = {source.path.parent for source in tree.test_files}
    for folder in sorted(folder for folder in folders if folder.parent == tree.root / "domains"):
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
    for path in tree.test_paths:
        shown = path.relative_to(tree.root).as_posix()
        layer = TEST_FILE.fullmatch(path.name)
        if layer is None:
            yield f"{shown}: call it l<k>_<topic>_test.py, after its layer"
            continue
        build_file = build_files.build_file_of(path, tree.root)
        if build_file is None:
            yield f"{shown}: no BUILD.bazel above it: add one with a layer_test target"
            continue
        try:
            targets = build_files.layer_tests(build_file)
        except build_files.Unreadable as error:
            yield f"{shown}: its BUILD file is unreadable at {error}"
            continue
        owners = [target for target in targets if path in target.files]
        if not owners:
            yield f"{shown}: no layer_test lists it, so it never runs: add it to one of {layer[1]}"
        for target in owners:
            if target.layer != layer[1]:
                yield f"{shown}: it is of {layer[1]} by its name, but listed in {target.name}: move it"


def no_literal_tolerance(tree: Tree) -> Iterator[str]:
    """No test file has a tolerance of its own: numbers come from the ledger."""
    for source in tree.test_files:
        for node, what in tolerances.literals(source):
            yield f"{source.shown}:{node.lineno}: {what}: take it from the ledger, as in ledger[...]"


def no_skip(tree: Tree) -> Iterator[str]:
    """No case that judges an engine can be left out; one that judges the net only with a condition and a reason."""
    for source in tree.judging_sources:
        for node, what in skips.found(source):
            yield (
                f"{source.shown}:{node.lineno}: {what}: give the case a target with enough cards, "
                "or record a defect in the engine's expectations"
            )
    for source in tree.test_files:
        if source not in tree.judging_sources:
            for node, what in skips.undocumented(source):
                yield f"{source.shown}:{node.lineno}: {what}"


def every_case_asserts(tree: Tree) -> Iterator[str]:
    """Every case can fail by an assertion: its own, or one in a function of this tree that it calls."""
    for case in tree.cases:
        if not any(assertions(case.source, case.node)):
            yield f"{case.where}: asserts nothing, so it cannot fail: state what must hold"


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


def every_fault_is_proven(tree: Tree) -> Iterator[str]:
    """For every contract that a fault must fail, a fault_test has the fault's catalogue and a case of the contract."""
    targets, unreadable = [], []
    for build_file in build_files.all_below(tree.root):
        try:
            targets += build_files.fault_tests(build_file, tree.root)
        except build_files.Unreadable as error:
            unreadable.append(f"{build_file.relative_to(tree.root).as_posix()}: unreadable at {error}")
    if unreadable:
        # Without these files' targets nearly every fault would look unproven.
        yield from unreadable
        return
    proven = {
        (catalogue, contract)
        for target in targets
        for case in tree.cases
        if case.source.path in target.files
        for catalogue in target.catalogue
        for contract in case.contracts
    }
    for fault in tree.faults:
        for one in fault.must_fail:
            if not fault.unreadable and (fault.catalogue, one) not in proven:
                yield (
                    f"{fault.where}: no fault_test has both this catalogue and a case of {one}: "
                    "add the file to its srcs or proof"
                )


def the_ledger_is_whole(tree: Tree) -> Iterator[str]:
    """The rows of all domains together are one ledger, and each file is common.toml or a domain's."""
    folder = tree.root / "harness/judging/ledger"
    domains = {path.parent.name for name in CONTRACT_FILES for path in tree.root.rglob(name)}
    for path in sorted(folder.glob("*.toml")):
        if path.stem not in {"common", *domains}:
            yield f"{path.relative_to(tree.root).as_posix()}: {path.stem} is no domain; no target sees these rows"
    try:
        load_ledger(folder)
    except LedgerError as error:
        yield from str(error).split("; ")


CHECKS: tuple[Check, ...] = (
    contracts_are_well_formed,
    every_contract_has_a_case,
    every_case_cites_contracts,
    every_file_has_a_target,
    no_literal_tolerance,
    no_skip,
    every_case_asserts,
    every_contract_has_a_fault,
    every_fault_is_proven,
    expectations_are_real,
    every_reproduction_is_named,
    the_ledger_is_whole,
    every_feature_is_mapped,
)


def problems(check: Check, tree: Tree) -> list[str]:
    """What breaks a rule; a rule that needs contracts which cannot be read says only that."""
    try:
        return list(check(tree))
    except ContractError:
        return [f"cannot be judged until {contracts_are_well_formed.__name__} holds"]


def report(check: Check, tree: Tree) -> str:
    """What breaks a rule, counted; empty where it holds."""
    found = problems(check, tree)
    count = f"{len(found)} problem{'s' if len(found) > 1 else ''}"
    return "\n".join([f"{count}:", *found]) if found else ""

"""The tree itself keeps the rules."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import hyper_parallel_tests
from hyper_parallel_tests.contract_check.checks import CHECKS, report
from hyper_parallel_tests.contract_check.tree import Tree


@pytest.fixture(scope="module")
def tree() -> Tree:
    """The package as it lies here."""
    return Tree(Path(hyper_parallel_tests.__path__[0]))


def the_tree_is_all_there(tree: Tree) -> Iterator[str]:
    """With nothing to look at every rule would hold."""
    for what in ("contracts", "domain_cases", "faults"):
        found = len(getattr(tree, what))
        if found < 10:
            yield f"{found} {what} are seen, which cannot be all: does //:sources bring the files along?"


@pytest.mark.parametrize("check", [*CHECKS, the_tree_is_all_there], ids=lambda check: check.__name__)
def test_the_tree_keeps_the_rule(tree, check):
    """Each rule holds everywhere; what breaks it is listed with what to do."""
    found = report(check, tree)
    if found:
        pytest.fail(found, pytrace=False)

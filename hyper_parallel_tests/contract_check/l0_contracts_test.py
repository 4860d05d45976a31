"""The tree itself keeps the rules."""

from __future__ import annotations

from pathlib import Path

import pytest

import hyper_parallel_tests
from hyper_parallel_tests.contract_check.checks import CHECKS, Tree


@pytest.fixture(scope="module")
def tree() -> Tree:
    """The package as it lies here."""
    return Tree(Path(hyper_parallel_tests.__path__[0]))


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_the_tree_keeps_the_rule(tree, check):
    """Each rule holds everywhere; what breaks it is listed with what to do."""
    problems = list(check(tree))
    if problems:
        pytest.fail(f"{len(problems)} problems:\n" + "\n".join(problems), pytrace=False)


def test_the_tree_is_all_there(tree):
    """The check sees domains, faults and BUILD files: with nothing to look at every rule would hold."""
    assert len(tree.contracts) > 10
    assert len(tree.domain_cases) > 10
    assert tree.faults

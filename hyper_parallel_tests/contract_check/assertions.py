"""Finds the places at which a case can fail."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from hyper_parallel_tests.contract_check.sources import Function, Source

__all__ = ["assertions"]

_EXPECTATIONS = {"pytest.raises", "pytest.warns", "pytest.fail"}


def assertions(source: Source, function: Function) -> Iterator[tuple[Source, int]]:
    """File and line of each assertion of a function, of its own or in a function of this tree that it calls.

    An assertion is an `assert` that can fail, a call of something called `assert_...`, or what pytest expects.
    """
    yield from _assertions(source, function, set())


def _assertions(source: Source, function: Function, seen: set[Function]) -> Iterator[tuple[Source, int]]:
    if function in seen:
        return
    seen.add(function)
    for node in ast.walk(function):
        if isinstance(node, ast.Assert) and not _always_true(node.test):
            yield source, node.lineno
        elif isinstance(node, ast.Call):
            name = source.dotted(node.func)
            last = node.func.attr if isinstance(node.func, ast.Attribute) else name.split(".")[-1]
            if last.startswith("assert_") or name in _EXPECTATIONS:
                yield source, node.lineno
                continue
            called = source.function(node.func.id) if isinstance(node.func, ast.Name) else None
            if called is not None:
                yield from _assertions(*called, seen)


def _always_true(test: ast.expr) -> bool:
    return (isinstance(test, ast.Constant) and bool(test.value)) or (isinstance(test, ast.Tuple) and bool(test.elts))

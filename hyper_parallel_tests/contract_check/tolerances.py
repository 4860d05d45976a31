"""Finds tolerances that a test file brings along instead of taking them from the ledger."""

from __future__ import annotations

import ast
import contextlib
import operator
from collections.abc import Iterator

from hyper_parallel_tests.contract_check.sources import Source

_KEYWORDS = {"atol", "rtol", "abs_tol", "rel_tol"}
_CLOSE = {
    "pytest.approx",
    "math.isclose",
    "torch.allclose",
    "torch.isclose",
    "torch.testing.assert_close",
    "torch.testing.assert_allclose",
    "numpy.allclose",
    "numpy.isclose",
    "numpy.testing.assert_allclose",
    "numpy.testing.assert_almost_equal",
}
_CLOSE_METHODS = {"allclose", "isclose"}

_ARITHMETIC = {ast.Pow: operator.pow, ast.Mult: operator.mul, ast.Div: operator.truediv}

# Bounds on counts and sizes are no tolerances; a fraction this small in a comparison always is one.
_SMALL = 1e-2


def literals(source: Source) -> Iterator[tuple[ast.expr, str]]:
    """(node, what it is) for each tolerance in the file, spelled out or implied by a function."""
    for node in ast.walk(source.tree):
        if isinstance(node, ast.Call):
            name = source.dotted(node.func)
            method = isinstance(node.func, ast.Attribute) and node.func.attr in _CLOSE_METHODS
            if name in _CLOSE or method:
                yield node, f"{name or node.func.attr} has a tolerance of its own"
                continue
            for keyword in node.keywords:
                if keyword.arg in _KEYWORDS:
                    yield node, f"{keyword.arg}={ast.unparse(keyword.value)} is a tolerance of its own"
        elif isinstance(node, ast.Compare):
            number = _tolerance_in(source, node)
            if number is not None:
                yield node, f"`{ast.unparse(node)}` compares by the literal {number:g}"


def _tolerance_in(source: Source, node: ast.Compare) -> float | None:
    """The number by which a comparison is lenient: any small one, or one that bounds a difference."""
    if not all(isinstance(one, (ast.Lt, ast.LtE, ast.Gt, ast.GtE)) for one in node.ops):
        return None
    sides = [node.left, *node.comparators]
    numbers = [number for side in sides for number in _numbers(source, side)]
    small = next((number for number in numbers if 0 < abs(number) <= _SMALL), None)
    if small is not None:
        return small
    bounds = [number for side in sides if (number := _number(source, side)) is not None]
    fraction = next((number for number in bounds if number != int(number)), None)
    return fraction if any(_is_difference(side) for side in sides) else None


def _numbers(source: Source, node: ast.expr) -> Iterator[float]:
    for home, part in source.expand(node):
        number = _number(home, part)
        if isinstance(part, ast.expr) and number is not None:
            yield number


def _number(source: Source, node: ast.AST) -> float | None:
    if isinstance(node, ast.Name) and source.value(node.id):
        source, node = source.value(node.id)
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, (ast.USub, ast.UAdd)):
        number = _number(source, node.operand)
        return -number if number is not None and isinstance(node.op, ast.USub) else number
    if isinstance(node, ast.Constant) and type(node.value) in {int, float}:
        return float(node.value)
    if isinstance(node, ast.BinOp) and type(node.op) in _ARITHMETIC:
        left, right = _number(source, node.left), _number(source, node.right)
        if left is not None and right is not None:
            # A test file may hold any arithmetic: 1 / 0 has no value, and (-1) ** 0.5 none to compare by.
            with contextlib.suppress(ArithmeticError, TypeError):
                return float(_ARITHMETIC[type(node.op)](left, right))
    return None


def _is_difference(node: ast.expr) -> bool:
    """Whether an expression takes the magnitude of a difference, as in abs(a - b) or (a - b).norm()."""
    subtracts = any(isinstance(part, ast.BinOp) and isinstance(part.op, ast.Sub) for part in ast.walk(node))
    called = {
        part.func.id if isinstance(part.func, ast.Name) else getattr(part.func, "attr", "")
        for part in ast.walk(node)
        if isinstance(part, ast.Call)
    }
    return subtracts and bool(called & {"abs", "fabs", "max", "norm", "amax"})

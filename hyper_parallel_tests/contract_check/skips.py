"""Finds what leaves a case out: skips, and expected failures."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from hyper_parallel_tests.contract_check.sources import Source

_EXPECTED_FAILURES = {"pytest.mark.xfail", "pytest.xfail", "unittest.expectedFailure"}
_UNCONDITIONAL = {"pytest.mark.skip", "unittest.skip", "pytest.importorskip"}
_CONDITIONAL = {"pytest.skip", "pytest.mark.skipif", "unittest.skipIf", "unittest.skipUnless", "unittest.SkipTest"}


def found(source: Source) -> Iterator[tuple[ast.expr, str]]:
    """(node, what it is) for everything in a file that can leave a case out, under a condition or not."""
    for node in ast.walk(source.tree):
        name = source.dotted(node) if isinstance(node, (ast.Attribute, ast.Name)) else ""
        if name in _EXPECTED_FAILURES | _UNCONDITIONAL | _CONDITIONAL:
            yield node, name
        elif isinstance(node, ast.Attribute) and node.attr == "skipTest":
            yield node, "skipTest"


def undocumented(source: Source) -> Iterator[tuple[ast.expr, str]]:
    """(node, what is wrong with it and what to do) for skips without condition or reason and expected failures."""
    for node in ast.walk(source.tree):
        name = source.dotted(node) if isinstance(node, (ast.Attribute, ast.Name)) else ""
        if name in _EXPECTED_FAILURES:
            yield node, f"{name}: list what is broken in the engine's expectations instead"
        elif name in _UNCONDITIONAL:
            yield node, f"{name} skips without a condition: make the case run"
    for call, conditional in _calls(source.tree, False):
        name = source.dotted(call.func)
        if name not in {"pytest.skip", "pytest.mark.skipif"}:
            continue
        reason = next((one.value for one in call.keywords if one.arg in {"reason", "msg"}), None)
        if name == "pytest.skip":
            reason = call.args[0] if call.args else reason
        else:
            conditional = bool(call.args) and not isinstance(call.args[0], ast.Constant)
        if not conditional:
            yield call, f"{name} skips without a condition: make the case run"
        if reason is None or (isinstance(reason, ast.Constant) and not str(reason.value or "").strip()):
            yield call, f"{name} gives no reason: say why"


def _calls(node: ast.AST, conditional: bool) -> Iterator[tuple[ast.Call, bool]]:
    """All calls, and whether each stands under a condition."""
    if isinstance(node, ast.Call):
        yield node, conditional
    inside = conditional or isinstance(node, (ast.If, ast.IfExp, ast.ExceptHandler))
    for child in ast.iter_child_nodes(node):
        yield from _calls(child, inside)

"""Reads Python files of a tree, as far as the checks need to understand them."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

PACKAGE = "hyper_parallel_tests"
TEST_FILE = re.compile(r"(l[0-4])_\w+_test\.py")

Function = ast.FunctionDef | ast.AsyncFunctionDef


class Sources:
    """The Python files below `root`, the folder of the package, each parsed once."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._parsed: dict[Path, Source] = {}

    def read(self, path: Path) -> Source:
        """The parsed file.

        Raises:
            SyntaxError: it is no Python.
        """
        if path not in self._parsed:
            self._parsed[path] = Source(self, path, ast.parse(path.read_text(encoding="utf-8"), str(path)))
        return self._parsed[path]

    def module(self, name: str) -> Source | None:
        """The file of a dotted module name, None where it is not in this tree."""
        first, *rest = name.split(".")
        if first != PACKAGE or not rest:
            return None
        base = self.root.joinpath(*rest)
        for path in (base.with_suffix(".py"), base / "__init__.py"):
            if path.is_file():
                return self.read(path)
        return None


@dataclass(frozen=True)
class Source:
    """One Python file. Names are resolved as far as module level, also into other files of the tree."""

    sources: Sources
    path: Path
    tree: ast.Module

    @property
    def shown(self) -> str:
        """The path as messages give it."""
        return self.path.relative_to(self.sources.root).as_posix()

    @cached_property
    def functions(self) -> dict[str, Function]:
        """Module-level functions by name."""
        return {node.name: node for node in self.tree.body if isinstance(node, Function)}

    @cached_property
    def values(self) -> dict[str, ast.expr]:
        """Expressions that module-level names are bound to."""
        found = {}
        for node in self.tree.body:
            if isinstance(node, ast.Assign):
                found |= {target.id: node.value for target in node.targets if isinstance(target, ast.Name)}
            elif isinstance(node, ast.AnnAssign) and node.value and isinstance(node.target, ast.Name):
                found[node.target.id] = node.value
        return found

    @cached_property
    def imports(self) -> dict[str, tuple[str, str]]:
        """Local name -> (module, name in it); the name is empty where the module itself is imported."""
        found = {}
        for node in ast.walk(self.tree):
            if isinstance(node, ast.ImportFrom) and node.module and not node.level:
                found |= {alias.asname or alias.name: (node.module, alias.name) for alias in node.names}
            elif isinstance(node, ast.Import):
                for alias in node.names:
                    first = alias.name.split(".")[0]
                    found[alias.asname or first] = (alias.name if alias.asname else first, "")
        return found

    def function(self, name: str) -> tuple[Source, Function] | None:
        """The function that a name means here, in this file or the one that it is imported from."""
        if name in self.functions:
            return self, self.functions[name]
        module, original = self.imports.get(name, ("", ""))
        other = self.sources.module(module) if original else None
        return other.function(original) if other is not None and other is not self else None

    def value(self, name: str) -> tuple[Source, ast.expr] | None:
        """The expression that a module-level name is bound to, here or where it is imported from."""
        if name in self.values:
            return self, self.values[name]
        module, original = self.imports.get(name, ("", ""))
        other = self.sources.module(module) if original else None
        return other.value(original) if other is not None and other is not self else None

    def expand(self, node: ast.AST, depth: int = 5) -> Iterator[tuple[Source, ast.AST]]:
        """All nodes of an expression with their files, module-level names followed to their values."""
        for part in ast.walk(node):
            yield self, part
            if isinstance(part, ast.Name) and depth:
                found = self.value(part.id)
                if found is not None:
                    yield from found[0].expand(found[1], depth - 1)

    def dotted(self, node: ast.AST) -> str:
        """The full dotted name of an expression such as `pytest.approx`, imports undone; else empty."""
        if isinstance(node, ast.Attribute):
            left = self.dotted(node.value)
            return f"{left}.{node.attr}" if left else ""
        if isinstance(node, ast.Name):
            module, original = self.imports.get(node.id, (node.id, ""))
            return f"{module}.{original}" if original else module
        return ""


@dataclass(frozen=True)
class Case:
    """A test function.

    Attributes:
        source, node: where it is.
        name: its name, the class's before it where it is in one.
        layer: of its file.
        contracts: ids that it cites.
        unreadable: contract arguments that are no literal text.
    """

    source: Source
    node: Function
    name: str
    layer: str
    contracts: tuple[str, ...]
    unreadable: tuple[str, ...] = field(default=())

    @property
    def where(self) -> str:
        """`path:line: name`, as messages begin."""
        return f"{self.source.shown}:{self.node.lineno}: {self.name}"


def cases_of(source: Source) -> list[Case]:
    """The test functions of a file called l<k>_<topic>_test.py, those of classes included."""
    layer = TEST_FILE.fullmatch(source.path.name)
    shared = [source.values["pytestmark"]] if "pytestmark" in source.values else []
    found = []
    for node in source.tree.body:
        if isinstance(node, Function) and node.name.startswith("test"):
            found.append(_case(source, node, node.name, layer[1] if layer else "", shared))
        elif isinstance(node, ast.ClassDef) and node.name.startswith("Test"):
            for inner in node.body:
                if isinstance(inner, Function) and inner.name.startswith("test"):
                    name = f"{node.name}::{inner.name}"
                    found.append(_case(source, inner, name, layer[1] if layer else "", [*shared, *node.decorator_list]))
    return found


def _case(source: Source, node: Function, name: str, layer: str, shared: list[ast.expr]) -> Case:
    ids, unreadable = [], []
    for expression in (*node.decorator_list, *shared):
        for home, part in source.expand(expression):
            if not isinstance(part, ast.Call) or home.dotted(part.func).split(".")[-1] != "contract":
                continue
            for argument in part.args:
                literal = isinstance(argument, ast.Constant) and isinstance(argument.value, str)
                (ids if literal else unreadable).append(argument.value if literal else ast.unparse(argument))
    return Case(source, node, name, layer, tuple(dict.fromkeys(ids)), tuple(unreadable))

"""Reads which test files belong to which target: BUILD files are Python in syntax, so `ast` parses them."""

from __future__ import annotations

import ast
import contextlib
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_BUILD_NAMES = ("BUILD.bazel", "BUILD")
_READ = {"name", "srcs"}
_LAYER_NAME = re.compile(r"(l[0-4])(_\w+)?")


class Unreadable(ValueError):
    """A BUILD file says something that cannot be worked out without running Bazel."""


@dataclass(frozen=True)
class Target:
    """A `layer_test` target.

    Attributes:
        name: e.g. l1_2card.
        layer: that its name tells, empty where it tells none.
        srcs: its source files, as names relative to the package.
        build_file: where it is declared.
        line: on which line.
    """

    name: str
    layer: str
    srcs: tuple[str, ...]
    build_file: Path
    line: int

    @property
    def files(self) -> list[Path]:
        """Its source files' paths."""
        return [self.build_file.parent / src for src in self.srcs]


def build_file_of(path: Path, root: Path) -> Path | None:
    """The BUILD file of the package that `path` is in, at `root` or below; None where there is none."""
    for folder in path.parents:
        for name in _BUILD_NAMES:
            if (folder / name).is_file():
                return folder / name
        if folder == root:
            break
    return None


def layer_tests(build_file: Path) -> list[Target]:
    """The `layer_test` targets of a BUILD file, globs evaluated.

    Raises:
        Unreadable: the file is no Starlark, or a name or srcs is not made of literals, names of the file,
            formatting, `+` and `glob`.
    """
    try:
        tree = ast.parse(build_file.read_text(encoding="utf-8"))
    except SyntaxError as error:
        raise Unreadable(f"line {error.lineno}: {error.msg}") from error
    names: dict[str, Any] = {}
    found = []
    for node in tree.body:
        if isinstance(node, ast.Assign) and len(node.targets) == 1 and isinstance(node.targets[0], ast.Name):
            # A constant that no target uses need not be readable.
            with contextlib.suppress(Unreadable):
                names[node.targets[0].id] = _Reader(build_file.parent, names).value(node.value)
        for call, reader in _layer_test_calls(node, _Reader(build_file.parent, names)):
            given = {keyword.arg: reader.value(keyword.value) for keyword in call.keywords if keyword.arg in _READ}
            layer = _LAYER_NAME.fullmatch(given.get("name", ""))
            srcs = tuple(src.removeprefix(":") for src in given.get("srcs", []))
            found.append(Target(given.get("name", ""), layer[1] if layer else "", srcs, build_file, call.lineno))
    return found


def _layer_test_calls(node: ast.stmt, reader: _Reader) -> Iterator[tuple[ast.Call, _Reader]]:
    """The layer_test calls of a statement, plain or in a comprehension, with who reads their arguments."""
    value = node.value if isinstance(node, ast.Expr) else None
    if _is_layer_test(value):
        yield value, reader
    elif isinstance(value, ast.ListComp) and _is_layer_test(value.elt):
        loop, *more = value.generators
        if more or loop.ifs or not isinstance(loop.target, ast.Name):
            raise Unreadable(f"line {node.lineno}: write layer_test targets out, or over one simple list")
        for one in reader.value(loop.iter):
            yield value.elt, _Reader(reader.package, {**reader.names, loop.target.id: one})


def _is_layer_test(node: ast.AST | None) -> bool:
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "layer_test"


@dataclass(frozen=True)
class _Reader:
    """Works out expressions of a BUILD file.

    Attributes:
        package: the file's folder, where globs look.
        names: values of the names that are known so far.
    """

    package: Path
    names: dict[str, Any]

    def value(self, node: ast.expr) -> Any:
        """The value of an expression."""
        if isinstance(node, ast.Constant):
            return node.value
        if isinstance(node, ast.List):
            return [self.value(one) for one in node.elts]
        if isinstance(node, ast.Tuple):
            return tuple(self.value(one) for one in node.elts)
        if isinstance(node, ast.Name) and node.id in self.names:
            return self.names[node.id]
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
            return self.value(node.left) + self.value(node.right)
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mod):
            return self.value(node.left) % self.value(node.right)
        if isinstance(node, ast.Call):
            return self._call(node)
        raise self._unreadable(node)

    def _call(self, node: ast.Call) -> Any:
        function = node.func
        if isinstance(function, ast.Attribute) and function.attr == "format":
            named = {keyword.arg: self.value(keyword.value) for keyword in node.keywords if keyword.arg}
            return self.value(function.value).format(*map(self.value, node.args), **named)
        name = function.id if isinstance(function, ast.Name) else ""
        if name == "str" and len(node.args) == 1:
            return str(self.value(node.args[0]))
        if name != "glob":
            raise self._unreadable(node)
        given = dict(zip(("include", "exclude"), map(self.value, node.args), strict=False))
        given |= {key.arg: self.value(key.value) for key in node.keywords if key.arg in {"include", "exclude"}}
        return _glob(self.package, given.get("include", []), given.get("exclude", []))

    def _unreadable(self, node: ast.expr) -> Unreadable:
        return Unreadable(
            f"line {node.lineno}: cannot read `{ast.unparse(node)}`: use literals, names, format, + or glob"
        )


def _glob(package: Path, include: list[str], exclude: list[str]) -> list[str]:
    """What Bazel's glob matches: `*` stays in a folder, `**` crosses them, inner packages are left out."""
    wanted, unwanted = [_pattern(one) for one in include], [_pattern(one) for one in exclude]
    found = []
    for path in sorted(package.rglob("*")):
        name = path.relative_to(package).as_posix()
        ours = path.is_file() and build_file_of(path, package).parent == package
        if ours and _matches(name, wanted) and not _matches(name, unwanted):
            found.append(name)
    return found


def _matches(name: str, patterns: list[re.Pattern[str]]) -> bool:
    return any(pattern.fullmatch(name) for pattern in patterns)


def _pattern(glob: str) -> re.Pattern[str]:
    parts = [
        r"(?:[^/]+/)*" if part == "**" else re.escape(part).replace(r"\*", "[^/]*") + "/" for part in glob.split("/")
    ]
    if glob.endswith("**"):
        return re.compile("".join(parts) + "[^/]+")
    return re.compile("".join(parts).removesuffix("/"))

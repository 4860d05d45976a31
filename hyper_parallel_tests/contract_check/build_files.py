"""Reads which test files belong to which target: BUILD files are Python in syntax, so `ast` parses them."""

from __future__ import annotations

import ast
import contextlib
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from hyper_parallel_tests.contract_check.sources import PACKAGE
from hyper_parallel_tests.harness.contracts import Contract, load_contracts

_BUILD_NAMES = ("BUILD.bazel", "BUILD")
_LAYER_NAME = re.compile(r"(l[0-4])(_\w+)?")


class Unreadable(ValueError):
    """A BUILD file says something that cannot be worked out without running Bazel."""


@dataclass(frozen=True)
class Target:
    """A `layer_test` or `fault_test` target.

    Attributes:
        name: e.g. l1_2card.
        layer: that its name tells, empty where it tells none.
        srcs: its source files, as names relative to the package.
        build_file: where it is declared.
        line: on which line.
        catalogue: names of its modules of faults; a layer_test has none.
    """

    name: str
    layer: str
    srcs: tuple[str, ...]
    build_file: Path
    line: int
    catalogue: tuple[str, ...] = ()

    @property
    def files(self) -> list[Path]:
        """Its source files' paths."""
        return [self.build_file.parent / src for src in self.srcs]

    def label(self, root: Path) -> str:
        """Its label; `root` is the folder of the product."""
        return f"//{PACKAGE}/{self.build_file.parent.relative_to(root).as_posix()}:{self.name}"


def build_file_of(path: Path, root: Path) -> Path | None:
    """The BUILD file of the package that `path` is in, at `root` or below; None where there is none."""
    for folder in path.parents:
        for name in _BUILD_NAMES:
            if (folder / name).is_file():
                return folder / name
        if folder == root:
            break
    return None


def all_below(root: Path) -> list[Path]:
    """The BUILD files of the packages at `root` and below."""
    paths = [path for name in _BUILD_NAMES for path in root.rglob(name)]
    return sorted(path for path in paths if build_file_of(path, root) == path)


def layer_tests(build_file: Path) -> list[Target]:
    """The `layer_test` targets of a BUILD file, globs evaluated, and those of the registry beside it.

    Raises:
        Unreadable: the file is no Starlark, or a name or srcs is not made of literals, names of the file, formatting,
            `+` and `glob`.
    """
    written = [_target(call, reader) for call, reader in _calls(build_file, "layer_test")]
    return written + [
        Target(f"{one.layer}_{one.cards}card_{one.name}", one.layer, (_scenario_file(one),), build_file, 1)
        for one in _scenarios(build_file)
    ]


def fault_tests(build_file: Path, root: Path) -> list[Target]:
    """The `fault_test` targets of a BUILD file, as `layer_tests`, one with proofs once for each of them.

    Args:
        build_file: the file.
        root: the folder of the product.

    Raises:
        Unreadable: as `layer_tests`, the catalogue and the proofs included.
    """
    found = []
    for call, reader in _calls(build_file, "fault_test"):
        target = _target(call, reader)
        given = {one.arg: reader.value(one.value) for one in call.keywords if one.arg in {"catalogue", "proofs"}}
        for label, srcs in (given.get("proofs") or {}).items():
            found.append(replace(target, srcs=_names(srcs), catalogue=(_last(label),)))
        if not given.get("proofs"):
            labels = given.get("catalogue") or [_domain_of(build_file.parent, root)]
            found.append(replace(target, catalogue=tuple(map(_last, labels))))
    scenarios = _scenarios(build_file)
    for faults, cards in dict.fromkeys((one.faults, one.cards) for one in scenarios):
        srcs = tuple(_scenario_file(one) for one in scenarios if (one.faults, one.cards) == (faults, cards))
        found.append(Target(f"faults_{cards}card", "", srcs, build_file, 1, (faults,)))
    return found


def _scenarios(build_file: Path) -> list[Contract]:
    """The scenarios that have targets in a BUILD file: those of the registry beside it."""
    found = load_contracts(build_file.parent).values() if build_file.with_name("registry.toml").is_file() else ()
    return [one for one in found if one.path.parent == build_file.parent]


def _scenario_file(scenario: Contract) -> str:
    return f"{scenario.layer}_{scenario.name}_test.py"


def _last(label: str) -> str:
    """The name of a label's target."""
    return re.split("[:/]", label)[-1]


def _names(srcs: Iterable[str]) -> tuple[str, ...]:
    return tuple(src.removeprefix(":") for src in srcs)


def _domain_of(package: Path, root: Path) -> str:
    """The domain of a package, which the rule's default catalogue is named after."""
    folders = package.relative_to(root).parts
    return next((one for one in folders if one != "domains"), root.name)


def _target(call: ast.Call, reader: _Reader) -> Target:
    given = {one.arg: reader.value(one.value) for one in call.keywords if one.arg in {"name", "srcs"}}
    name = given.get("name", "")
    layer = _LAYER_NAME.fullmatch(name)
    srcs = _names(given.get("srcs", []))
    return Target(name, layer[1] if layer else "", srcs, reader.build_file, call.lineno)


def _calls(build_file: Path, rule: str) -> Iterator[tuple[ast.Call, _Reader]]:
    """The calls of a rule in a BUILD file, each with who reads its arguments."""
    try:
        tree = ast.parse(build_file.read_text(encoding="utf-8"))
    except SyntaxError as error:
        raise Unreadable(f"line {error.lineno}: {error.msg}") from error
    names: dict[str, Any] = {}
    for node in tree.body:
        reader = _Reader(build_file, names)
        if isinstance(node, ast.Assign) and len(node.targets) == 1 and isinstance(node.targets[0], ast.Name):
            # A constant that no target uses need not be readable.
            with contextlib.suppress(Unreadable):
                names[node.targets[0].id] = reader.value(node.value)
        elif isinstance(node, ast.Expr):
            yield from _calls_of(node.value, rule, reader)


def _calls_of(value: ast.expr, rule: str, reader: _Reader) -> Iterator[tuple[ast.Call, _Reader]]:
    """The calls of a rule that an expression statement makes, plain or in a comprehension."""
    if _is_call(value, rule):
        yield value, reader
    elif isinstance(value, ast.ListComp) and _is_call(value.elt, rule):
        loop, *more = value.generators
        if more or loop.ifs or not isinstance(loop.target, ast.Name):
            raise Unreadable(f"line {value.lineno}: write {rule} targets out, or over one simple list")
        for one in reader.value(loop.iter):
            yield value.elt, _Reader(reader.build_file, {**reader.names, loop.target.id: one})


def _is_call(node: ast.expr, rule: str) -> bool:
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == rule


@dataclass(frozen=True)
class _Reader:
    """Works out expressions of a BUILD file.

    Attributes:
        build_file: the file; globs look in its folder.
        names: values of the names that are known so far.
    """

    build_file: Path
    names: dict[str, Any]

    def value(self, node: ast.expr) -> Any:
        """The value of an expression."""
        if isinstance(node, ast.Constant):
            return node.value
        if isinstance(node, ast.List):
            return [self.value(one) for one in node.elts]
        if isinstance(node, ast.Tuple):
            return tuple(self.value(one) for one in node.elts)
        if isinstance(node, ast.Dict) and None not in node.keys:
            return {self.value(key): self.value(one) for key, one in zip(node.keys, node.values, strict=True)}
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
        return _glob(self.build_file.parent, given.get("include", []), given.get("exclude", []))

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

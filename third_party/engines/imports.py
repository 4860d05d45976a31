"""What the modules of a Python package need of each other, read from their text: nothing is imported.

A reference in a function's body counts like one at the top, and so does a string that is the dotted name of a module
(importlib): a test that reaches the call needs the module. A file that does not parse refers to nothing; whoever
imports it gets Python's own error.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple


class Reference(NamedTuple):
    """`from module import name`; name is None for `import module`."""

    module: str
    name: str | None = None


class Package:
    """The modules of a package below one folder, by dotted name.

    Args:
        root: the package's folder, with an `__init__.py`.
        leave_out: folders relative to it whose modules do not count, and references to them neither.
    """

    def __init__(self, root: Path, leave_out: Sequence[str] = ()) -> None:
        self.root, self.name = root, root.name
        self._leave_out = [Path(folder) for folder in leave_out]
        self.modules = {self._dotted(path): path for path in self.files() if path.suffix == ".py"}
        self._references = {module: list(self._read(module)) for module in self.modules}
        self.exports = self._exports()

    def files(self) -> list[Path]:
        """All files that belong to the package, in order; none in folders that Python cannot import from."""
        found = (path for path in sorted(self.root.rglob("*")) if path.is_file() and path.suffix != ".pyc")
        return [path for path in found if self._belongs(path.relative_to(self.root))]

    def folder(self, module: str) -> str:
        """Where a module lies, relative to the root; "" for the root's own modules."""
        return _folder(self.modules[module].relative_to(self.root))

    def needed(self, module: str) -> set[str]:
        """The package's modules that one refers to, with the packages around them, which Python imports first."""
        found = {target for reference in self._references[module] for target in self._resolve(reference)}
        found.add(module)
        around = {other for target in found for other in _around(target)}
        return ((found | around) & self.modules.keys()) - {module}

    @property
    def lazy(self) -> bool:
        """Whether the root's `__init__.py` only hands on names, so that a name can be had without the others."""
        return self.exports is not None

    def _belongs(self, relative: Path) -> bool:
        if any(relative.is_relative_to(folder) for folder in self._leave_out):
            return False
        return not relative.name.startswith(".") and all(
            part.isidentifier() and part != "__pycache__" for part in relative.parent.parts
        )

    def _dotted(self, path: Path) -> str:
        parts = path.relative_to(self.root).with_suffix("").parts
        return ".".join((self.name, *(parts[:-1] if parts[-1] == "__init__" else parts)))

    def _tree(self, module: str) -> ast.Module:
        try:
            return ast.parse(self.modules[module].read_bytes())
        except (SyntaxError, ValueError):
            return ast.Module(body=[], type_ignores=[])

    def _read(self, module: str) -> Iterator[Reference]:
        """References to the package's own modules; `import package` alone refers to what is then read from it."""
        dotted_name = re.compile(rf"{re.escape(self.name)}(\.\w+)+\.?")
        tree = self._tree(module)
        names = {self.name}
        for node in ast.walk(tree):
            if isinstance(node, ast.Import):
                names |= {alias.asname for alias in node.names if alias.name == self.name and alias.asname}
                yield from (Reference(alias.name) for alias in node.names if self._is_ours(alias.name))
            elif isinstance(node, ast.ImportFrom):
                origin = self._absolute(module, node)
                yield from (Reference(origin, alias.name) for alias in node.names if self._is_ours(origin))
            elif isinstance(node, ast.Constant) and isinstance(node.value, str) and dotted_name.fullmatch(node.value):
                yield Reference(node.value.rstrip("."))
        for node in ast.walk(tree):
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in names:
                yield Reference(self.name, node.attr)

    def _is_ours(self, module: str) -> bool:
        return module.partition(".")[0] == self.name

    def _absolute(self, module: str, node: ast.ImportFrom) -> str:
        if not node.level:
            return node.module or ""
        is_package = self.modules[module].name == "__init__.py"
        steps = node.level - 1 if is_package else node.level
        parts = module.split(".")
        return ".".join(parts[: len(parts) - steps] + ([node.module] if node.module else []))

    def _resolve(self, reference: Reference) -> set[str]:
        """Modules that a reference leads to: a name of the root leads to where the root has it from."""
        module, name = reference
        if name and f"{module}.{name}" in self.modules:
            return {f"{module}.{name}"}
        if module == self.name and self.exports is not None:
            handed_on = self.exports.values() if name == "*" else filter(None, [self.exports.get(name or "")])
            return {target for one in handed_on for target in self._resolve(one)} | {module}
        if module in self.modules:
            return {module}
        return {other for other in self.modules if other.startswith(f"{module}.")}

    def _exports(self) -> dict[str, Reference] | None:
        """Name -> where it is from, if the root does nothing but import names, list them and hold constants."""
        exports: dict[str, Reference] = {}
        for node in self._tree(self.name).body:
            if isinstance(node, ast.ImportFrom) and all(alias.name != "*" for alias in node.names):
                origin = self._absolute(self.name, node)
                exports |= {alias.asname or alias.name: Reference(origin, alias.name) for alias in node.names}
            elif not _is_constant(node):
                return None
        return exports


def _around(module: str) -> list[str]:
    parts = module.split(".")
    return [".".join(parts[:count]) for count in range(1, len(parts))]


def _folder(relative: Path) -> str:
    return "" if relative.parent == Path() else relative.parent.as_posix()


def _is_constant(node: ast.stmt) -> bool:
    """A docstring, `__all__ = [...]` or `__version__ = "..."`."""
    if not isinstance(node, (ast.Expr, ast.Assign, ast.AnnAssign)) or node.value is None:
        return False
    try:
        ast.literal_eval(node.value)
    except ValueError:
        return False
    return True

"""Which version of an engine this is: its own version, and the newest commit in what a test can see of it.

A test sees some libraries of an engine (libraries.py), each with a file `engine_info/<library>.json` about itself
alone: one for the whole checkout would re-run every test after every commit.
"""

from __future__ import annotations

import ast
import hashlib
import importlib.util
import json
import re
import subprocess
import tomllib
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

INFO_FOLDER = "engine_info"


def installed_version(package: str) -> str:
    """Version of the engine that `import package` would find, without importing it.

    Returns:
        `0.1.0`, or with a git history `0.1.0.post20260305+g1a2b3c4`: the day and the id of the newest commit that
        changed what is at hand; `.edited` follows where there are changes beyond it.

    Raises:
        ModuleNotFoundError: there is no such package to import.
    """
    spec = importlib.util.find_spec(package)
    if spec is None or spec.origin is None:
        raise ModuleNotFoundError(
            f"no package {package}: name a checkout by --repo_env={package.upper()}_PATH=, without Bazel on PYTHONPATH",
            name=package,
        )
    folder = Path(spec.origin).parent
    infos = [json.loads(path.read_text()) for path in sorted((folder.parent / INFO_FOLDER).rglob("*.json"))]
    return combined_version(infos or [describe(folder.parent, package, ["**/*"])])


def combined_version(infos: Sequence[dict[str, Any]]) -> str:
    """One version for all libraries that are at hand, given what `describe` said of each."""
    version = infos[0]["version"]
    changed = [info for info in infos if info["revision"]]
    if not changed:
        return version
    newest = max(changed, key=lambda info: (info["date"], info["revision"]))
    edited = ".edited" if any(info["edited"] for info in infos) else ""
    return f"{version}.post{newest['date'].replace('-', '')}+g{newest['revision'][:7]}{edited}"


def describe(checkout: Path, package: str, patterns: Iterable[str]) -> dict[str, Any]:
    """What a part of a checkout is: the engine's version, the last commit that touched the part, a digest of its files.

    Args:
        checkout: the top folder; its git history counts if it is the top of a work tree.
        package: the engine's package in it.
        patterns: the part, as globs relative to the package. `core/*` is not recursive, `**/*` is.
    """
    globs = [f"{package}/{pattern}" for pattern in patterns]
    revision, date, edited = "", "", False
    if _is_work_tree(checkout):
        paths = [f":(glob){glob}" for glob in globs]
        revision, _, date = _git(checkout, "log", "-1", "--format=%H %cs", "--", *paths).partition(" ")
        edited = bool(_git(checkout, "status", "--porcelain", "--untracked-files=all", "--", *paths))
    files = sorted({path for glob in globs for path in checkout.glob(glob) if _counts(path)})
    return {
        "version": read_version(checkout, package),
        "revision": revision,
        "date": date,
        "edited": edited,
        "digest": _digest(checkout, files),
    }


def read_version(checkout: Path, package: str) -> str:
    """The engine's own version from pyproject.toml, setup.py or the package's `__version__`; 0 where none tells."""
    pyproject = checkout / "pyproject.toml"
    if pyproject.is_file():
        version = tomllib.loads(pyproject.read_text(encoding="utf-8")).get("project", {}).get("version")
        if version:
            return str(version)
    for path in (checkout / "setup.py", checkout / package / "__init__.py"):
        if path.is_file():
            for node in ast.walk(_parsed(path)):
                if version := _version_in(node):
                    return version
    return "0"


def watched(checkout: Path) -> list[Path]:
    """Files outside the package that the description depends on."""
    paths = [checkout / "pyproject.toml", checkout / "setup.py"]
    if _is_work_tree(checkout):
        paths += [checkout / _git(checkout, "rev-parse", "--git-path", name) for name in ("HEAD", "logs/HEAD")]
    return [path for path in paths if path.is_file()]


def _parsed(path: Path) -> ast.Module:
    try:
        return ast.parse(path.read_bytes())
    except (SyntaxError, ValueError):
        return ast.Module(body=[], type_ignores=[])


def _version_in(node: ast.AST) -> str | None:
    """The text of `setup(version="...")` or `__version__ = "..."`."""
    is_argument = isinstance(node, ast.keyword) and node.arg == "version"
    is_constant = isinstance(node, ast.Assign) and [getattr(target, "id", "") for target in node.targets] == [
        "__version__"
    ]
    text = getattr(node.value, "value", None) if is_argument or is_constant else None
    return text if isinstance(text, str) and re.fullmatch(r"\d[\w.+!-]*", text) else None


def _is_work_tree(checkout: Path) -> bool:
    """Whether the checkout itself has a git history: one of a folder around it would tell nothing about the engine."""
    return (checkout / ".git").exists() and bool(_git(checkout, "rev-parse", "--verify", "HEAD"))


def _git(checkout: Path, *words: str) -> str:
    """git's answer, empty where there is no git or it refuses. No hook and no monitor of the checkout is run."""
    settings = ["-c", f"safe.directory={checkout.resolve()}", "-c", "core.fsmonitor=false"]
    try:
        done = subprocess.run(
            ["git", "--no-optional-locks", *settings, *words], cwd=checkout, capture_output=True, text=True, check=False
        )
    except FileNotFoundError:
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""


def _counts(path: Path) -> bool:
    return path.is_file() and path.suffix != ".pyc" and "__pycache__" not in path.parts


def _digest(checkout: Path, files: Iterable[Path]) -> str:
    digest = hashlib.sha256()
    for path in files:
        digest.update(f"{path.relative_to(checkout)}\0".encode() + hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()

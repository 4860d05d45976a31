"""pytest's assertions with texts, compiled once a launch.

Ranks, and the ranks of jobs, import the same test files. pytest would keep the code beside the source, where a test may
not write, so that each of them would do the work anew.
"""

from __future__ import annotations

import ast
import contextlib
import importlib.util
from collections.abc import Sequence
from pathlib import Path
from types import CodeType
from typing import Any

from _pytest.assertion import rewrite


def prepare(files: Sequence[str]) -> None:
    """Compile `files`, paths with or without `::case`, for this process and those that are forked off it."""
    ready: dict[Path, tuple[bytes, CodeType]] = {}
    for file in dict.fromkeys(Path(name.partition("::")[0]).absolute() for name in files):
        # What is wrong with a file pytest says better.
        with contextlib.suppress(OSError, SyntaxError, ValueError):
            ready[file] = _compiled(file)
    original = rewrite._rewrite_test

    def compiled(file: Path, config: Any) -> tuple[bytes, CodeType]:
        return ready.get(file) or original(file, config)

    rewrite._rewrite_test = compiled


def _compiled(file: Path) -> tuple[bytes, CodeType]:
    source = file.read_bytes()
    tree = ast.parse(source, filename=str(file))
    rewrite.rewrite_asserts(tree, source, str(file))
    return importlib.util.source_hash(source), compile(tree, str(file), "exec", dont_inherit=True)

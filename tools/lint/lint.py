"""Checks every source file of the repository: ruff over Python, buildifier over Starlark.

Both always run, so that one call shows everything there is to repair.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

_STARLARK_NAMES = {"BUILD", "BUILD.bazel", "WORKSPACE"}
_BUILDIFIER_WARNINGS = "-function-docstring,-module-docstring"


def main(argv: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="lint", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--ruff", required=True, help="the ruff binary")
    parser.add_argument("--buildifier", required=True, help="the buildifier binary")
    parser.add_argument("--config", required=True, help="pyproject.toml with ruff's settings")
    parser.add_argument("files", type=Path, help="a file that lists the files to check, one a line")
    options = parser.parse_args(argv)
    files = [Path(line) for line in sorted(options.files.read_text(encoding="utf-8").splitlines())]
    python = [str(path) for path in files if is_python(path)]
    starlark = [str(path) for path in files if path.suffix == ".bzl" or path.name in _STARLARK_NAMES]
    ruff = [options.ruff, "check", "--no-cache", f"--config={options.config}", "--output-format=concise"]
    good = passes("ruff", [*ruff, *python], "'ruff check --fix' repairs many of these")
    layout = [options.ruff, "format", "--check", "--no-cache", f"--config={options.config}"]
    good &= passes("ruff format", [*layout, *python], "'ruff format' repairs all of these")
    buildifier = [options.buildifier, "-mode=check", "-lint=warn", f"-warnings={_BUILDIFIER_WARNINGS}"]
    good &= passes("buildifier", [*buildifier, *starlark], "'buildifier -lint=fix FILE' repairs many of these")
    print(f"lint: {len(python)} Python and {len(starlark)} Starlark files, {'clean' if good else 'not clean'}")
    return 0 if good else 1


def is_python(path: Path) -> bool:
    """Whether a file is Python by its suffix or, for a script without one, by its first line."""
    if path.suffix:
        return path.suffix == ".py"
    with path.open("rb") as file:
        first = file.readline()
    return first.startswith(b"#!") and b"python" in first


def passes(tool: str, command: Sequence[str], advice: str) -> bool:
    """Runs one tool; prints what it says only if it objects."""
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    if done.returncode:
        print(f"{tool} ({advice}):\n{done.stdout}")
    return done.returncode == 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

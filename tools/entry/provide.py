"""A Bazel in the user's cache: made once, whole or not at all, shared by all checkouts with the same lock."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path

from . import debian, relocate
from .apt import Package
from .find import SERIES
from .lock import only_one
from .report import OTHER_WAYS, EntryError, Progress, say
from .tree import STAMP, command, read_stamp, tree_path


def provide(home: Path) -> dict:
    """Make the tree, unless another process does meanwhile, and return its stamp.

    Errors: why it cannot be made, and what to do instead.
    """
    tree = tree_path(home)
    with only_one(home / "bazel" / "lock", f"setting up Bazel in {tree}"):
        return read_stamp(tree) or _make(home / "bazel", tree)


def _make(home: Path, tree: Path) -> dict:
    progress = Progress()
    reason = "the Bazel set up earlier is damaged" if tree.exists() else f"found no Bazel {SERIES}x"
    say(f"{reason}; setting one up in {tree} (once, about a minute)")
    packages = debian.fetch(home, progress)
    scratch = tree.with_name(tree.name + ".partial")
    for leftover in (scratch, tree):
        if leftover.exists():
            progress.step(f"removing the incomplete {leftover.name}")
            shutil.rmtree(leftover)
    scratch.mkdir(parents=True)
    label = relocate.build(packages, home / "debs", scratch, tree, progress)
    stamp = _stamp(scratch, tree, label, packages)
    (scratch / STAMP).write_text(json.dumps(stamp, indent=1))
    scratch.rename(tree)
    # The index is of no use any more: the next set-up would need a fresh one.
    shutil.rmtree(home / "apt", ignore_errors=True)
    progress.step("starting it for the first time")
    _try_out(tree, command(stamp))
    progress.step(f"Bazel {label} is ready")
    return stamp


def _stamp(scratch: Path, tree: Path, label: str, packages: list[Package]) -> dict:
    layout = relocate.Layout(scratch)
    paths = [os.path.join(folder, name) for folder, _, names in os.walk(scratch) for name in names]
    return {
        "root": str(tree),
        "version": label,
        "bazel": str(layout.bazel.relative_to(scratch)),
        "bazelrc": str(layout.bazelrc.relative_to(scratch)),
        "install_base": str(layout.install_base.relative_to(scratch)),
        "jre": str(layout.jre.relative_to(scratch)),
        "packages": {package.name: package.version for package in packages},
        "files": {os.path.relpath(path, scratch): os.lstat(path).st_size for path in paths},
    }


def _try_out(tree: Path, bazel: list[str]) -> None:
    """Start the server once, so that a tree that does not work is reported here and not kept."""
    trial = tree.with_name(tree.name + ".trial")
    trial.mkdir(exist_ok=True)
    call = [*bazel, f"--output_user_root={trial}", "--batch", "help"]
    done = subprocess.run(call, cwd=trial, capture_output=True, text=True)
    shutil.rmtree(trial, ignore_errors=True)
    if done.returncode:
        (tree / STAMP).unlink()
        raise EntryError(f"{done.stderr.strip()}\nthe relocated Bazel does not start; {OTHER_WAYS}")

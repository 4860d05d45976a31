"""A Bazel in the user's cache: made once, whole or not at all, shared by all checkouts with the same lock."""

from __future__ import annotations

import hashlib
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

_STAMP = "complete.json"


def cache_home() -> Path:
    """This project's folder in the user's cache."""
    base = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return Path(base, "hyper_parallel_tests")


def tree_path(home: Path) -> Path:
    """Where the tree lies that this checkout asks for: the name changes with whatever changes the tree."""
    asked = b"%s %d " % (os.uname().machine.encode(), relocate.RECIPE) + debian.LOCK_FILE.read_bytes()
    return home / "bazel" / f"tree-{hashlib.sha256(asked).hexdigest()[:16]}"


def command(tree: Path) -> list[str]:
    """How the tree's Bazel is called: the program and its startup flags."""
    stamp = _stamp(tree)
    return [
        str(tree / stamp["bazel"]),
        "--nosystem_rc",
        f"--bazelrc={tree / stamp['bazelrc']}",
        f"--install_base={tree / stamp['install_base']}",
        "--trust_install_base",
        f"--server_javabase={tree / stamp['jre']}",
    ]


def version(tree: Path) -> str:
    """The version of the tree's Bazel."""
    return _stamp(tree)["version"]


def _stamp(tree: Path) -> dict:
    return json.loads((tree / _STAMP).read_text())


def is_complete(tree: Path) -> bool:
    """Whether the tree is whole: where it was made for, with all files of its stamp, in their size."""
    try:
        stamp = _stamp(tree)
        return stamp["root"] == str(tree) and all(
            os.lstat(f"{tree}/{name}").st_size == size for name, size in stamp["files"].items()
        )
    except (OSError, ValueError, KeyError):
        return False


def provide(home: Path) -> None:
    """Make the tree, unless another process does meanwhile. Errors: why it cannot be made, what to do."""
    tree = tree_path(home)
    with only_one(home / "bazel" / "lock", f"setting up Bazel in {tree}"):
        if not is_complete(tree):
            _make(home / "bazel", tree)


def _make(home: Path, tree: Path) -> None:
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
    _write_stamp(scratch, tree, label, packages)
    scratch.rename(tree)
    progress.step("starting it for the first time")
    _try_out(tree)
    progress.step(f"Bazel {label} is ready")


def _write_stamp(scratch: Path, tree: Path, label: str, packages: list[Package]) -> None:
    layout = relocate.Layout(scratch)
    paths = [os.path.join(folder, name) for folder, _, names in os.walk(scratch) for name in names]
    stamp = {
        "root": str(tree),
        "version": label,
        "bazel": str(layout.bazel.relative_to(scratch)),
        "bazelrc": str(layout.bazelrc.relative_to(scratch)),
        "install_base": str(layout.install_base.relative_to(scratch)),
        "jre": str(layout.jre.relative_to(scratch)),
        "packages": {package.name: package.version for package in packages},
        "files": {os.path.relpath(path, scratch): os.lstat(path).st_size for path in paths},
    }
    (scratch / _STAMP).write_text(json.dumps(stamp, indent=1))


def _try_out(tree: Path) -> None:
    """Start the server once, so that a tree that does not work is reported here and not kept."""
    trial = tree.with_name(tree.name + ".trial")
    trial.mkdir(exist_ok=True)
    call = [*command(tree), f"--output_user_root={trial}", "--batch", "help"]
    done = subprocess.run(call, cwd=trial, capture_output=True, text=True)
    shutil.rmtree(trial, ignore_errors=True)
    if done.returncode:
        (tree / _STAMP).unlink()
        raise EntryError(f"{done.stderr.strip()}\nthe relocated Bazel does not start; {OTHER_WAYS}")

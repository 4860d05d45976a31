"""The unpacked Bazel in the user's cache: where it lies, whether it is whole, how it is called."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path

# Part of a tree's identity: count up when relocate.py changes what it makes.
RECIPE = 1
LOCK_FILE = Path(__file__).with_name("debian.lock.json")
STAMP = "complete.json"


def cache_home() -> Path:
    """This project's folder in the user's cache."""
    base = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return Path(base, "hyper_parallel_tests")


def tree_path(home: Path) -> Path:
    """Where the tree lies that this checkout asks for: the name changes with whatever changes the tree."""
    asked = b"%s %d " % (os.uname().machine.encode(), RECIPE) + LOCK_FILE.read_bytes()
    return home / "bazel" / f"tree-{hashlib.sha256(asked).hexdigest()[:16]}"


def read_stamp(tree: Path) -> dict | None:
    """The tree's stamp, or None if the tree is not whole.

    Whole means: it lies where it was made for, with all the files that the stamp lists, in their size.
    """
    try:
        stamp = json.loads((tree / STAMP).read_text())
        files = stamp["files"] if stamp["root"] == str(tree) else None
        whole = files and all(os.lstat(f"{tree}/{name}").st_size == size for name, size in files.items())
    except (OSError, ValueError, KeyError):
        return None
    return stamp if whole else None


def command(stamp: dict) -> list[str]:
    """How the tree's Bazel is called: the program and its startup flags."""
    root = stamp["root"]
    return [
        f"{root}/{stamp['bazel']}",
        "--nosystem_rc",
        f"--bazelrc={root}/{stamp['bazelrc']}",
        f"--install_base={root}/{stamp['install_base']}",
        "--trust_install_base",
        f"--server_javabase={root}/{stamp['jre']}",
    ]

"""Which Bazel runs: the one bazelisk hands over, one the user names, one on PATH, one in the user's cache."""

from __future__ import annotations

import json
import mmap
import os
import re
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from .report import OTHER_WAYS, EntryError
from .tree import cache_home, command, read_stamp, tree_path

SERIES = "7."
_PROBING = "HYPER_PARALLEL_TESTS_PROBES_BAZEL"
_ENTRY = Path(__file__).resolve().parent.parent / "bazel"
_DEBIAN_INSTALL_BASE = Path("/usr/share/bazel")
_DEBIAN_LABEL = _DEBIAN_INSTALL_BASE / "build-label.txt"


class Bazel(NamedTuple):
    """A Bazel to run: the command without the user's arguments, why this one, its version ("": unknown)."""

    command: list[str]
    how: str
    version: str = ""
    # Debian's build does not know its own version.
    cannot_tell_version: bool = False


def bazel(environ: Mapping[str, str], may_provide: bool = True) -> Bazel:
    """The Bazel to run. Errors: none is found, and none may or can be provided."""
    if _PROBING in environ:
        raise EntryError(f"a bazel on PATH leads back to {_ENTRY}; take it off PATH, or {OTHER_WAYS}")
    if "BAZEL_REAL" in environ:
        return _named(environ["BAZEL_REAL"], "handed over in BAZEL_REAL")
    if "BAZEL" in environ:
        return _named(environ["BAZEL"], "named in BAZEL")
    return _on_path(environ.get("PATH", "")) or _in_cache(may_provide)


def _named(path: str, how: str) -> Bazel:
    found = shutil.which(path)
    if found is None:
        raise EntryError(f"expected an executable Bazel at {path} ({how}), found none")
    if Path(found).resolve() == _ENTRY:
        raise EntryError(f"expected a Bazel at {path} ({how}), found this script; unset the variable")
    return Bazel([os.path.abspath(found)], how)


def _on_path(search: str) -> Bazel | None:
    bazelisk = shutil.which("bazelisk", path=search)
    if bazelisk:
        return Bazel([bazelisk], "bazelisk on PATH")
    for path in _programs("bazel", search):
        if is_bazelisk(path):
            return Bazel([str(path)], "bazel on PATH, which is bazelisk")
        version = _version(path)
        if version.startswith(SERIES):
            if _is_debians(path):
                words = [str(path), f"--bazelrc={_debian_bazelrc()}"]
                return Bazel(words, "Debian's bazel on PATH", version, cannot_tell_version=True)
            return Bazel([str(path)], "bazel on PATH", version)
    return None


def _in_cache(may_provide: bool) -> Bazel:
    home = cache_home()
    stamp = read_stamp(tree_path(home))
    if stamp is None:
        if not may_provide:
            raise EntryError(f"expected bazelisk or a Bazel {SERIES}x on PATH or in {home}, found none")
        # Imported here: ordinary calls do without these modules, and start sooner.
        from .provide import provide

        stamp = provide(home)
    how = f"provided in {stamp['root']}"
    return Bazel(command(stamp), how, stamp["version"], cannot_tell_version=True)


def _programs(name: str, search: str) -> Iterator[Path]:
    """The executables of this name on a search path, without this script."""
    for folder in search.split(os.pathsep):
        path = Path(folder or ".", name)
        if path.is_file() and os.access(path, os.X_OK) and not _is_entry(path.resolve()):
            yield path.absolute()


def _is_entry(path: Path) -> bool:
    """Whether the file is this script, in this or another checkout."""
    return path == _ENTRY or (path.parent / "entry" / Path(__file__).name).exists()


def is_bazelisk(path: Path) -> bool:
    """Whether the program is bazelisk, whatever its name: npm's script, or the binary (by a string in it)."""
    if path.resolve().name.startswith("bazelisk"):
        return True
    with open(path, "rb") as file:
        try:
            with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
                return content.find(b"BAZELISK_SKIP_WRAPPER") >= 0
        except ValueError:
            # An empty file cannot be mapped.
            return False


def _version(path: Path) -> str:
    """The program's version, "" when it does not tell. Asked once for each state of the file."""
    memory = cache_home() / "bazel-versions.json"
    status = path.stat()
    key = f"{path} {status.st_size} {status.st_mtime_ns}"
    try:
        known = json.loads(memory.read_text())
    except (OSError, ValueError):
        known = {}
    if key not in known:
        known[key] = _ask_version(path)
        memory.parent.mkdir(parents=True, exist_ok=True)
        memory.write_text(json.dumps(known))
    return known[key]


def _ask_version(path: Path) -> str:
    import subprocess

    # From the root folder, so that a wrapper finds no workspace whose tools/bazel it would run.
    try:
        environment = {**os.environ, _PROBING: "1"}
        done = subprocess.run(
            [str(path), "--version"], cwd="/", env=environment, capture_output=True, text=True, timeout=60
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    told = re.search(r"^bazel (\d\S*)", done.stdout, re.M)
    if told:
        return told[1]
    return _DEBIAN_LABEL.read_text().strip() if _is_debians(path) else ""


def _is_debians(path: Path) -> bool:
    """Whether this is the Bazel of Debian's package, installed, in a version that has a label."""
    return path.resolve() == Path("/usr/bin/bazel") and _DEBIAN_LABEL.exists()


def _debian_bazelrc() -> Path:
    """A bazelrc for Debian's installed Bazel: its rule sets, and no kept sandboxes (Debian's default)."""
    from .relocate import overrides

    path = cache_home() / "debian.bazelrc"
    text = overrides(_DEBIAN_INSTALL_BASE) + "build --nosandbox_debug\n"
    if not path.exists() or path.read_text() != text:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return path

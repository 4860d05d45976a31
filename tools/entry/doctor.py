"""`tools/bazel doctor`: what this machine has for the tests, and what to do about what it lacks."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import signal
import subprocess
from dataclasses import dataclass
from pathlib import Path

from . import debian, find
from .apt import KEYRING
from .apt_sources import mirrors
from .report import OTHER_WAYS, EntryError
from .tree import cache_home

_WORKSPACE = Path(__file__).resolve().parents[2]
_PYTHON = "python3.11"
_DISK_GB = 5


@dataclass(frozen=True)
class Finding:
    """One line of the report. `needed`: without it no test runs. `advice`: what to do when it is absent."""

    what: str
    there: bool
    found: str
    advice: str = ""
    needed: bool = True

    def __str__(self) -> str:
        state = "ok" if self.there else "MISSING" if self.needed else "absent"
        line = f"{state:8}{self.what:12}{self.found}"
        return line if self.there or not self.advice else f"{line}\n{'':20}-> {self.advice}"


def run() -> int:
    """Print all findings. 0 when the tests can run, 1 else."""
    # A reader that closes the pipe (| head) ends this quietly.
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    lacking = []
    for check in (_bazel, _python, _torch, _devices, _sandbox, _disk, _git, _npm):
        finding = check()
        print(finding, flush=True)
        if finding.needed and not finding.there:
            lacking.append(finding.what)
    print(f"The tests cannot run yet; missing: {', '.join(lacking)}." if lacking else "The tests can run.")
    return 1 if lacking else 0


def _bazel() -> Finding:
    try:
        bazel = find.bazel(os.environ, may_provide=False)
        version = f"{bazel.version}, " if bazel.version else ""
        return Finding("Bazel", True, f"{version}{bazel.how}\n{'':20}{shlex.join(bazel.command)}")
    except EntryError as error:
        return _providable(str(error))


def _providable(why: str) -> Finding:
    if "BAZEL" in os.environ or "BAZEL_REAL" in os.environ:
        return Finding("Bazel", False, why, OTHER_WAYS)
    try:
        architecture, mirror = debian.architecture(), mirrors()[0]
    except EntryError as error:
        return Finding("Bazel", False, str(error))
    if not KEYRING.exists():
        return Finding("Bazel", False, f"none, and no {KEYRING}", "install debian-archive-keyring")
    size = sum(package.size for package in debian.recorded(architecture).values()) / 1e6
    source = f"Debian {debian.SUITE} on {mirror} ({size:.0f} MB)"
    return Finding("Bazel", True, f"none yet; the next call of tools/bazel sets one up from {source}")


def _python() -> Finding:
    path = shutil.which(_PYTHON)
    if not path:
        return Finding("Python", False, "none", f"install Python 3.11 so that {_PYTHON} is on PATH")
    version = _output(path, "--version")
    advice = f"let {_PYTHON} on PATH be a Python 3.11"
    return Finding("Python", version.startswith("Python 3.11"), f"{version} at {path}", advice)


def _torch() -> Finding:
    lock = _WORKSPACE / "third_party/python/requirements_cpu.lock"
    pinned = re.search(r"^torch==(\S+)", lock.read_text() if lock.exists() else "", re.M)
    if not pinned:
        return Finding("torch", False, f"no torch in {lock}", "restore that file from version control")
    version = pinned[1]
    offered = _output(_PYTHON, "-m", "pip", "index", "versions", "torch")
    there = version in re.split(r"[\s,()]+", offered)
    advice = (
        f"let pip's configuration name an index or a find-links folder with torch {version} for CPython 3.11 "
        f"(try: {_PYTHON} -m pip download --no-deps torch=={version})"
    )
    return Finding("torch", there, f"{version} {'is' if there else 'is not'} to be had through pip", advice)


def _devices() -> Finding:
    found = [f"cpu ({os.cpu_count()} cores)"]
    for name, nodes in (("cuda", "nvidia[0-9]*"), ("npu", "davinci[0-9]*")):
        count = len(list(Path("/dev").glob(nodes)))
        found.append(f"{name} ({count} cards)" if count else f"no {name}")
    return Finding("devices", True, ", ".join(found))


def _sandbox() -> Finding:
    probe = ["unshare", "--user", "--map-root-user", "--mount", "--pid", "--fork", "--mount-proc", "true"]
    if shutil.which("unshare") and subprocess.run(probe, capture_output=True).returncode == 0:
        return Finding("sandbox", True, "linux-sandbox (user namespaces are available)")
    return Finding(
        "sandbox",
        False,
        "processwrapper-sandbox (no user namespaces): tests run, but undeclared files stay visible to them",
        "allow user namespaces (sysctl kernel.unprivileged_userns_clone=1, or the container's options)",
        needed=False,
    )


def _disk() -> Finding:
    folder = cache_home()
    while not folder.exists():
        folder = folder.parent
    free = shutil.disk_usage(folder).free / 1e9
    advice = f"free {_DISK_GB} GB there, or name another place: XDG_CACHE_HOME and --output_user_root"
    return Finding("disk", free >= _DISK_GB, f"{free:.0f} GB free in {folder}", advice)


def _git() -> Finding:
    path = shutil.which("git")
    return Finding("git", bool(path), path or "none", "install git to fetch and submit changes", needed=False)


def _npm() -> Finding:
    path = shutil.which("npm") if shutil.which("node") else None
    advice = "install nodejs and npm: the lint test takes buildifier from npm"
    return Finding("npm", bool(path), path or "none", advice, needed=False)


def _output(*command: str) -> str:
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=120).stdout.strip()
    except (OSError, subprocess.TimeoutExpired):
        return ""

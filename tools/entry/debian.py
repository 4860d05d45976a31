"""Which of Debian's packages make a Bazel, and their verified .deb files.

The suite moves: debian.lock.json records the versions this was tried with. Where the suite still carries one,
its hash must be the recorded one; where it moved on, its present version is taken, with a message. Either way
Debian's own signature covers what is fetched.
"""

from __future__ import annotations

import fnmatch
import hashlib
import json
import shutil
import subprocess
from pathlib import Path

from .apt import KEYRING, Apt, Package
from .apt_sources import mirrors
from .find import SERIES
from .report import OTHER_WAYS, EntryError, Progress, say
from .tree import LOCK_FILE

SUITE = "forky"
# apt resolves what these depend on. Bazel's package forgets libblake3-0, which its JNI library needs.
ROOTS = ("bazel-bootstrap", "libblake3-0", "patchelf")


def architecture() -> str:
    """The machine's Debian architecture, for example amd64. Errors: the machine has no apt and dpkg."""
    for tool in ("apt-get", "dpkg"):
        if not shutil.which(tool):
            raise EntryError(f"expected {tool}, to set up Debian's Bazel, found none; {OTHER_WAYS}")
    return subprocess.check_output(["dpkg", "--print-architecture"], text=True).strip()


def recorded(arch: str) -> dict[str, Package]:
    """The packages that debian.lock.json records for an architecture, by name; empty when it records none."""
    entries = json.loads(LOCK_FILE.read_text())["packages"].get(arch, {})
    return {name: Package(name=name, **entry) for name, entry in entries.items()}


def wanted(apt: Apt) -> list[Package]:
    """The packages to fetch, in the suite's present versions."""
    lines = Path(__file__).with_name("debian_packages.txt").read_text().splitlines()
    patterns = [line for line in lines if line and not line.startswith("#")]
    closure = sorted(apt.closure(ROOTS))
    return apt.current(name for name in closure if any(fnmatch.fnmatchcase(name, wish) for wish in patterns))


def check_series(packages: list[Package]) -> str:
    """The packages' version of Bazel. Errors: not of the series that this workspace is written for."""
    version = next((package.version for package in packages if package.name == "bazel-bootstrap"), "none")
    if not version.startswith(SERIES):
        raise EntryError(f"expected a Bazel {SERIES}x in Debian {SUITE}, found {version}; {OTHER_WAYS}")
    return version


def moved_on(current: list[Package], record: dict[str, Package]) -> list[Package]:
    """The packages whose recorded version the suite no longer carries.

    Errors: it carries a recorded version with another hash.
    """
    moved = []
    for package in current:
        known = record.get(package.name)
        if known is None or known.version != package.version:
            moved.append(package)
        elif known.sha256 != package.sha256:
            raise EntryError(
                f"{package.filename}: expected sha256 {known.sha256} ({LOCK_FILE.name}), the mirror offers "
                f"{package.sha256} for the same version; do not use this mirror until that is explained"
            )
    return moved


def intact(package: Package, folder: Path) -> bool:
    """Whether the .deb lies in `folder` with its size and hash."""
    path = folder / package.filename
    if not path.is_file() or path.stat().st_size != package.size:
        return False
    return hashlib.sha256(path.read_bytes()).hexdigest() == package.sha256


def fetch(home: Path, progress: Progress) -> list[Package]:
    """Bring all wanted .deb files into home/debs and return them. What lies there intact is kept."""
    debs = home / "debs"
    debs.mkdir(parents=True, exist_ok=True)
    arch = architecture()
    record = recorded(arch)
    if record and all(intact(package, debs) for package in record.values()):
        return list(record.values())
    apt, packages = _open_suite(home / "apt", arch, progress)
    check_series(packages)
    moved = moved_on(packages, record)
    if moved:
        names = ", ".join(f"{package.name} {package.version}" for package in moved)
        say(f"Debian {SUITE} has moved on from {LOCK_FILE.name}; taking its present versions: {names}")
    _download(apt, [package for package in packages if not intact(package, debs)], debs, progress)
    return packages


def _open_suite(home: Path, arch: str, progress: Progress) -> tuple[Apt, list[Package]]:
    if not KEYRING.exists():
        raise EntryError(
            f"expected Debian's archive keyring at {KEYRING} to verify signatures with, found none; "
            f"install the package debian-archive-keyring, or {OTHER_WAYS}"
        )
    failures = []
    for mirror in mirrors():
        progress.step(f"reading the index of Debian {SUITE} from {mirror}")
        try:
            apt = Apt(home, arch, mirror, SUITE)
            apt.update()
            return apt, wanted(apt)
        except EntryError as error:
            failures.append(str(error))
    failures.append(f"expected a verified index of Debian {SUITE} from a mirror, found none; {OTHER_WAYS}")
    raise EntryError("\n".join(failures))


def _download(apt: Apt, missing: list[Package], folder: Path, progress: Progress) -> None:
    paths = [folder / package.filename for package in missing]
    total = sum(package.size for package in missing) / 1e6

    def tick() -> None:
        have = sum(path.stat().st_size for path in paths if path.exists()) / 1e6
        progress.step(f"downloading: {have:.0f} of {total:.0f} MB")

    for path in paths:
        path.unlink(missing_ok=True)
    if missing:
        progress.step(f"downloading {len(missing)} packages, {total:.0f} MB")
        apt.download(missing, folder, tick)
    broken = [package.filename for package in missing if not intact(package, folder)]
    if broken:
        raise EntryError(f"expected the signed index's size and sha256, found others: {', '.join(broken)}")

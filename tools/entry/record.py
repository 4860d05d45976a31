"""Refreshes debian.lock.json from what the suite carries now: `python3 -m tools.entry.record`."""

from __future__ import annotations

import json
import tempfile
from dataclasses import asdict
from pathlib import Path

from . import debian
from .apt import Apt
from .apt_sources import mirrors
from .report import say
from .tree import LOCK_FILE

_ARCHITECTURES = ("amd64", "arm64")


def main() -> None:
    """Write the present versions, sizes and hashes for each architecture."""
    record: dict[str, dict] = {}
    with tempfile.TemporaryDirectory() as folder:
        for arch in _ARCHITECTURES:
            apt = Apt(Path(folder, arch), arch, mirrors()[0], debian.SUITE)
            apt.update()
            packages = debian.wanted(apt)
            size = sum(package.size for package in packages) / 1e6
            say(f"{arch}: Bazel {debian.check_series(packages)}, {len(packages)} packages, {size:.0f} MB")
            record[arch] = {entry.pop("name"): entry for entry in map(asdict, packages)}
    LOCK_FILE.write_text(json.dumps({"suite": debian.SUITE, "packages": record}, indent=1) + "\n")


if __name__ == "__main__":
    main()

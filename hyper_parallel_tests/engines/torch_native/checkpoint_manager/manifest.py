"""The manifest of a checkpoint: what belongs to it, and whether it is still what was written."""

from __future__ import annotations

import hashlib
import json
import os
import stat
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from hyper_parallel_tests.engines.torch_native.checkpoint_manager.agreement import CheckpointError

__all__ = [
    "FORMAT",
    "MANIFEST",
    "check_file",
    "entry_of",
    "read_manifest",
    "sync",
    "verify_checkpoint",
    "write_manifest",
]

FORMAT = 1
MANIFEST = "manifest.json"


def entry_of(file: Path) -> dict[str, Any]:
    """Size and SHA-256 of a file that was written."""
    with file.open("rb") as stream:
        digest = hashlib.file_digest(stream, "sha256").hexdigest()
        return {"bytes": os.fstat(stream.fileno()).st_size, "sha256": digest}


def write_manifest(folder: Path, step: int, files: Mapping[str, Mapping[str, Any]]) -> None:
    """Puts the manifest into a folder of which all else is on the disk."""
    beside = folder / f"{MANIFEST}.tmp"
    with beside.open("wb") as stream:
        stream.write(_encoded({"format": FORMAT, "step": step, "files": files}))
        stream.flush()
        os.fsync(stream.fileno())
    beside.rename(folder / MANIFEST)
    sync(folder)


def sync(path: Path) -> None:
    """Returns when what is in a file, or the names in a folder, are on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def read_manifest(folder: Path, step: int | None = None) -> dict[str, Any]:
    """What ``write_manifest`` wrote.

    Args:
        step: that the folder's name says; None where it says none.

    Raises:
        CheckpointError: there is none, or it is not as this version writes them.
    """
    file = folder / MANIFEST
    try:
        written = _opened(file)
    except FileNotFoundError:
        raise CheckpointError(f"{folder} has no {MANIFEST}: its save has not ended") from None
    try:
        found = json.loads(written)
        version = found["format"]
        if version != FORMAT:
            raise CheckpointError(
                f"{file} has format version {version!r}, and this manager reads version {FORMAT}: "
                "load it with the version of the manager that saved it"
            )
        if step is not None and found["step"] != step:
            raise CheckpointError(f"{file} is that of step {found['step']!r}, expected step {step}")
        _check_names(file, found["files"])
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise CheckpointError(f"{file} is damaged: {type(error).__name__}: {error}") from error
    if _encoded(found) != written:
        raise CheckpointError(f"{file} is damaged: it is not written as a manifest is")
    return found


def check_file(folder: Path, name: str, expected: Mapping[str, Any]) -> None:
    """Compares one file with its entry.

    Raises:
        CheckpointError: names the file, what was expected and what was found.
    """
    file = folder / name
    try:
        mode = os.lstat(file).st_mode
    except FileNotFoundError:
        raise CheckpointError(f"{file} is missing: expected {expected['bytes']} bytes") from None
    if not stat.S_ISREG(mode):
        raise CheckpointError(f"{file} is a link or no file at all: expected a file of {expected['bytes']} bytes")
    size = os.lstat(file).st_size
    if size != expected["bytes"]:
        raise CheckpointError(f"{file} has {size} bytes: expected {expected['bytes']}")
    found = entry_of(file)["sha256"]
    if found != expected["sha256"]:
        raise CheckpointError(f"{file} has SHA-256 {found}: expected {expected['sha256']}")


def verify_checkpoint(path: str | Path) -> dict[str, Any]:
    """See the port."""
    folder = Path(path)
    found = read_manifest(folder)
    for name, expected in found["files"].items():
        check_file(folder, name, expected)
    return found


def _opened(file: Path) -> bytes:
    try:
        descriptor = os.open(file, os.O_RDONLY | os.O_NOFOLLOW)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise CheckpointError(f"{file} cannot be read: {error.strerror}") from error
    with os.fdopen(descriptor, "rb") as stream:
        return stream.read()


def _check_names(file: Path, names: Iterable[str]) -> None:
    for name in names:
        if name in {"", ".", ".."} or "/" in name or "\0" in name:
            raise CheckpointError(f"{file} names {name!r}, which is no file of its folder")


def _encoded(content: Mapping[str, Any]) -> bytes:
    return json.dumps(content, indent=1, sort_keys=True).encode()

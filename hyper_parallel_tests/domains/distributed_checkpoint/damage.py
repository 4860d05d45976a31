"""What may become of the files of a checkpoint, by accident or by intent."""

from __future__ import annotations

import hashlib
import json
import os
import pickle
import shutil
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

__all__ = ["DAMAGES", "HOSTILE", "MARK", "Damage", "RunsCode", "reseal", "shards_of"]

MARK = 1234.5678
"""A number of the state that stands in a shard, where a bit is flipped."""


class Damage(NamedTuple):
    """One thing that happens to a checkpoint.

    Attributes:
        do: changes the files of a folder; gets the folder of another checkpoint of the same form too.
        names: what the error says: a name of a file, or what is wrong.
    """

    do: Callable[[Path, Path], None]
    names: str


class RunsCode:
    """A value that makes a folder when it is unpickled."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.folder),)


def shards_of(folder: Path) -> list[Path]:
    """The files of tensors, largest first, and by name where they are as large."""
    others = {".metadata", "manifest.json"}
    files = [one for one in folder.iterdir() if one.name not in others]
    return sorted(files, key=lambda one: (-one.stat().st_size, one.name))


def reseal(folder: Path) -> None:
    """Makes a manifest fit to the files again, as one does who means to deceive."""
    manifest = folder / "manifest.json"
    if not manifest.exists():
        return
    content = json.loads(manifest.read_bytes())
    for name, entry in content["files"].items():
        written = (folder / name).read_bytes()
        entry.update(bytes=len(written), sha256=hashlib.sha256(written).hexdigest())
    manifest.write_bytes(json.dumps(content, indent=1, sort_keys=True).encode())


def _truncate(file: Path) -> None:
    os.truncate(file, file.stat().st_size // 2)


def _flip(file: Path, at: int) -> None:
    content = bytearray(file.read_bytes())
    content[at] ^= 0x10
    file.write_bytes(content)


def truncated_shard(folder: Path, _: Path) -> None:
    _truncate(_marked(folder))


def empty_shard(folder: Path, _: Path) -> None:
    os.truncate(_marked(folder), 0)


def missing_shard(folder: Path, _: Path) -> None:
    _marked(folder).unlink()


def longer_shard(folder: Path, _: Path) -> None:
    with _marked(folder).open("ab") as stream:
        stream.write(b"more")


def flipped_bit(folder: Path, _: Path) -> None:
    """In a number, where nothing but the number tells."""
    file = _marked(folder)
    _flip(file, file.read_bytes().index(struct.pack("<f", MARK)) + 2)


def shard_of_another_step(folder: Path, other: Path) -> None:
    """As an upload that was interrupted and resumed leaves it."""
    file = _marked(folder)
    shutil.copy(other / file.name, file)


def truncated_metadata(folder: Path, _: Path) -> None:
    _truncate(folder / ".metadata")


def missing_metadata(folder: Path, _: Path) -> None:
    (folder / ".metadata").unlink()


def metadata_of_another_step(folder: Path, other: Path) -> None:
    shutil.copy(other / ".metadata", folder / ".metadata")


def linked_shard(folder: Path, other: Path) -> None:
    """To a file of the same bytes, which is not the checkpoint's."""
    file, elsewhere = _marked(folder), folder.parent / "elsewhere"
    shutil.move(file, elsewhere)
    file.symlink_to(elsewhere)


def path_outside(folder: Path, other: Path) -> None:
    """Metadata that have a tensor in a file of somebody else."""
    _redirect(folder, other, lambda outside: f"../{outside.name}")


def absolute_path(folder: Path, other: Path) -> None:
    _redirect(folder, other, str)


def newer_format(folder: Path, _: Path) -> None:
    metadata = pickle.loads((folder / ".metadata").read_bytes())
    metadata.version = "99.0"
    (folder / ".metadata").write_bytes(pickle.dumps(metadata))
    reseal(folder)


def code_in_metadata(folder: Path, _: Path) -> None:
    (folder / ".metadata").write_bytes(pickle.dumps(RunsCode(folder.parent / "code was run")))
    reseal(folder)


def _redirect(folder: Path, other: Path, name: Callable[[Path], str]) -> None:
    file, outside = _marked(folder), folder.parent / "elsewhere"
    shutil.copy(other / file.name, outside)
    metadata = pickle.loads((folder / ".metadata").read_bytes())
    for place in metadata.storage_data.values():
        if place.relative_path == file.name:
            place.relative_path = name(outside)
    (folder / ".metadata").write_bytes(pickle.dumps(metadata))
    reseal(folder)


def _marked(folder: Path) -> Path:
    """The shard that has the marked number."""
    mark = struct.pack("<f", MARK)
    return next(one for one in shards_of(folder) if mark in one.read_bytes())


SHARD, METADATA = r"__\d_\d\.distcp|_rank\d_\.safetensors", r"\.metadata"

DAMAGES = {
    "truncated_shard": Damage(truncated_shard, SHARD),
    "empty_shard": Damage(empty_shard, SHARD),
    "missing_shard": Damage(missing_shard, SHARD),
    "longer_shard": Damage(longer_shard, SHARD),
    "flipped_bit": Damage(flipped_bit, SHARD),
    "shard_of_another_step": Damage(shard_of_another_step, SHARD),
    "truncated_metadata": Damage(truncated_metadata, METADATA),
    "missing_metadata": Damage(missing_metadata, METADATA),
    "metadata_of_another_step": Damage(metadata_of_another_step, METADATA),
}

HOSTILE = {
    "linked_shard": Damage(linked_shard, SHARD),
    "path_outside": Damage(path_outside, r"\.\./elsewhere"),
    "absolute_path": Damage(absolute_path, "/elsewhere"),
    "newer_format": Damage(newer_format, r"version.*99\.0"),
    "code_in_metadata": Damage(code_in_metadata, METADATA),
}

"""The folders of a package as libraries: what one needs, and which belong together because each needs the other."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from third_party.engines.imports import Package


@dataclass(frozen=True)
class Library:
    """Folders that cannot be had without each other, mostly one.

    Attributes:
        folders: relative to the package's root, the shortest first; "" is the root.
        files: modules and data, relative to the root. Data belong to the nearest folder with a module.
        needs: first folders of the libraries that this one refers to.
    """

    folders: tuple[str, ...]
    files: tuple[str, ...]
    needs: tuple[str, ...]


def libraries(package: Package) -> list[Library]:
    """All of a package as libraries without cycles, ordered by name."""
    needs = _needs(package)
    reach = {folder: _reach(folder, needs) for folder in needs}
    groups: dict[str, list[str]] = {}
    for folder in sorted(needs, key=lambda one: (one.count("/"), one)):
        leader = next((one for one in groups if folder in reach[one] and one in reach[folder]), folder)
        groups.setdefault(leader, []).append(folder)
    leaders = {folder: leader for leader, group in groups.items() for folder in group}
    files = _files(package, set(needs))
    return [
        Library(
            folders=tuple(group),
            files=tuple(sorted(file for folder in group for file in files[folder])),
            needs=tuple(sorted({leaders[other] for folder in group for other in needs[folder]} - {leader})),
        )
        for leader, group in sorted(groups.items())
    ]


def _needs(package: Package) -> dict[str, set[str]]:
    """Folder -> folders that its modules refer to. A root that hands names on lazily needs nothing itself."""
    needs: dict[str, set[str]] = {package.folder(module): set() for module in package.modules}
    for module in package.modules:
        folder = package.folder(module)
        if module != package.name or not package.lazy:
            needs[folder] |= {package.folder(other) for other in package.needed(module)} - {folder}
    return needs


def _reach(start: str, needs: dict[str, set[str]]) -> set[str]:
    found: set[str] = set()
    ahead = [start]
    while ahead:
        new = needs[ahead.pop()] - found
        found |= new
        ahead += new
    return found


def _files(package: Package, folders: set[str]) -> dict[str, list[str]]:
    files: dict[str, list[str]] = {folder: [] for folder in folders}
    for path in package.files():
        relative = path.relative_to(package.root)
        nearest = next(parent for parent in relative.parents if _name(parent) in folders)
        files[_name(nearest)].append(relative.as_posix())
    return files


def _name(folder: Path) -> str:
    return "" if folder == Path() else folder.as_posix()

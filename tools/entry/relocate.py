"""Makes a tree out of Debian's .deb files in which Bazel runs from any folder, whatever else the machine has.

Every program of the tree gets the tree's own dynamic loader and library path; the JRE's links into /etc and
the class path lead into the tree; a bazelrc names the rule sets that Debian ships with its Bazel.
"""

from __future__ import annotations

import os
import shutil
import struct
import subprocess
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from . import lock
from .apt import Package
from .find import SERIES
from .report import EntryError, Progress
from .trust import write_trust_store

_UNUSED = (
    "usr/include", "usr/lib/debug", "usr/share/bash-completion", "usr/share/doc", "usr/share/gcc",
    "usr/share/gdb", "usr/share/lintian", "usr/share/man", "usr/share/maven-repo",
)  # fmt: skip
# Parts of the JRE for screens, sound and smart cards: their libraries are not in the tree.
_UNUSED_JRE_LIBRARIES = (
    "libawt.so", "libawt_headless.so", "libfontmanager.so", "libj2pcsc.so", "libjavajpeg.so", "libjsound.so",
    "liblcms.so", "libmlib_image.so",
)  # fmt: skip
# Needed by the class path's jars, but missing from Debian's list of it: without them no client can connect.
_EXTRA_JARS = ("perfmark-api.jar", "perfmark-impl.jar", "perfmark-java9.jar", "jctools-core.jar")

_RULE_SETS = {
    "rules_cc": "rules/cc",
    "rules_java": "rules/java",
    "rules_license": "rules/license",
    "rules_proto": "rules/proto",
    "rules_python": "rules/python",
    "bazel_features": "tools/features",
    "bazel_skylib": "tools/skylib",
    "platforms": "tools/platforms",
}


@dataclass(frozen=True)
class Layout:
    """Where things lie in a tree."""

    root: Path

    @property
    def bazel(self) -> Path:
        return self.root / "usr/bin/bazel"

    @property
    def install_base(self) -> Path:
        return self.root / "usr/share/bazel"

    @property
    def bazelrc(self) -> Path:
        return self.root / "bazelrc"

    @property
    def jre(self) -> Path:
        return _only(self.root.glob("usr/lib/jvm/java-*-openjdk-*/bin/java"), "JRE", self.root).parent.parent

    @property
    def loader(self) -> Path:
        return _only(self.root.glob("usr/lib/*/ld-linux-*.so.*"), "dynamic loader", self.root)

    @property
    def libraries(self) -> Path:
        return self.loader.parent


def _only(found: Iterable[Path], what: str, root: Path) -> Path:
    paths = [path for path in found if not path.parent.parent.is_symlink()]
    if len(paths) != 1:
        raise EntryError(f"expected one {what} in the packages unpacked to {root}, found {len(paths)}")
    return paths[0]


def build(packages: list[Package], debs: Path, scratch: Path, target: Path, progress: Progress) -> str:
    """Make in `scratch` the tree that will lie at `target`, and return its Bazel's version."""
    progress.step(f"unpacking {len(packages)} packages")
    _each(lambda package: _call("dpkg-deb", "-x", debs / package.filename, scratch), packages)
    for name in _UNUSED:
        shutil.rmtree(scratch / name, ignore_errors=True)
    layout = Layout(scratch)
    for name in _UNUSED_JRE_LIBRARIES:
        (layout.jre / "lib" / name).unlink(missing_ok=True)
    version = (layout.install_base / "build-label.txt").read_text().strip()
    if not version.startswith(SERIES):
        raise EntryError(f"expected a Bazel {SERIES}x in the packages, found {version}")
    progress.step(f"relocating Bazel {version} to {target}")
    _relink(scratch)
    _relocate_programs(layout, target)
    _rewrite_class_path(layout, target)
    write_trust_store(layout.jre / "lib/security/cacerts")
    layout.bazelrc.write_text(_bazelrc(target, target / layout.install_base.relative_to(scratch)))
    return version


def _bazelrc(tree: Path, install_base: Path) -> str:
    # Tests have a /tmp of their own. A cache below it would hide the tree's programs from them.
    hidden = tree.is_relative_to("/tmp")
    return overrides(install_base) + (f'common "--sandbox_add_mount_pair={tree}"\n' if hidden else "")


def overrides(install_base: Path) -> str:
    """The bazelrc that lets WORKSPACE files name the rule sets lying below Debian's install base."""
    folders = {name: install_base / path for name, path in _RULE_SETS.items()}
    return "".join(f'common "--override_repository={name}={folder}"\n' for name, folder in folders.items())


def _each(work: Callable[[Any], object], items: Iterable[Any]) -> None:
    """Do the work for all items, as many at a time as there are cores."""
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        for _ in pool.map(work, items):
            pass


def _call(*command: str | Path) -> str:
    words = [str(word) for word in command]
    done = subprocess.run(words, text=True, capture_output=True, pass_fds=lock.held())
    if done.returncode:
        raise EntryError(f"`{' '.join(words)}` failed ({done.returncode}): {done.stderr.strip()}")
    return done.stdout


def _relink(root: Path) -> None:
    """Let absolute links lead to the same file inside the tree; drop those whose file no package brings."""
    for folder, folders, files in os.walk(root):
        for name in [*folders, *files]:
            link = Path(folder, name)
            if link.is_symlink() and os.path.isabs(os.readlink(link)):
                inside = root / os.readlink(link).lstrip("/")
                link.unlink()
                if inside.exists():
                    link.symlink_to(os.path.relpath(inside, link.parent))


def _relocate_programs(layout: Layout, target: Path) -> None:
    """Set loader and library path: as DT_RPATH, since a program's also serves the libraries that it loads."""
    patchelf = (layout.loader, "--library-path", layout.libraries, layout.root / "usr/bin/patchelf")
    final_loader = target / layout.loader.relative_to(layout.root)
    final_libraries = target / layout.libraries.relative_to(layout.root)

    def relocate(path: Path) -> None:
        old = _call(*patchelf, "--print-rpath", path).strip()
        _call(*patchelf, "--force-rpath", "--set-rpath", f"{old}:{final_libraries}".lstrip(":"), path)
        if _is_program(path):
            _call(*patchelf, "--set-interpreter", final_loader, path)

    _each(relocate, _own_elf_files(layout))


def _is_program(path: Path) -> bool:
    """Whether an ELF file asks for a dynamic loader: it has a program header of type PT_INTERP."""
    with open(path, "rb") as file:
        header = file.read(64)
        table, size, count = (*struct.unpack_from("<Q", header, 32), *struct.unpack_from("<HH", header, 54))
        file.seek(table)
        entries = file.read(size * count)
    pt_interp = 3
    return any(struct.unpack_from("<I", entries, index * size)[0] == pt_interp for index in range(count))


def _own_elf_files(layout: Layout) -> list[Path]:
    """The ELF files of Bazel and the JRE. The other libraries find each other through the program's path."""
    found = [layout.bazel]
    for folder in (layout.root / "usr/libexec", layout.libraries / "bazel", layout.jre):
        for path in sorted(folder.rglob("*")):
            if path.is_file() and not path.is_symlink():
                with open(path, "rb") as file:
                    if file.read(4) == b"\x7fELF":
                        found.append(path)
    return found


def _rewrite_class_path(layout: Layout, target: Path) -> None:
    path = layout.install_base / "bazel_classpath_debian_depends.txt"
    listed = [Path(entry).name for entry in path.read_text().split()]
    jars = Path("usr/share/java")
    names = dict.fromkeys([*listed, *_EXTRA_JARS])
    present = [name for name in names if (layout.root / jars / name).exists()]
    path.write_text("".join(f"{target / jars / name}\n" for name in present))

"""The mirrors that the machine's own apt sources name, in both of apt's formats."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from .report import OTHER_WAYS, EntryError

_SUITES = {"stable", "oldstable", "testing", "unstable", "sid"}


class Entry(NamedTuple):
    """One archive that apt takes binary packages from."""

    uri: str
    suite: str
    components: list[str]


def mirrors(etc: Path = Path("/etc")) -> list[str]:
    """The distinct URIs of the machine's Debian archive, in order. Errors: no Debian, or it names none."""
    os_release = etc / "os-release"
    text = os_release.read_text() if os_release.exists() else ""
    release = dict(re.findall(r'^(\w+)="?([^"\n]*)"?$', text, re.M))
    if release.get("ID") != "debian":
        system = release.get("ID", "an unknown system")
        raise EntryError(f"expected Debian to unpack its Bazel on, found {system}; {OTHER_WAYS}")
    suites = _SUITES | {release.get("VERSION_CODENAME", "sid")}
    found = [
        entry.uri.rstrip("/")
        for entry in _entries(etc / "apt")
        if entry.suite in suites and "main" in entry.components and not entry.uri.startswith("cdrom:")
    ]
    if not found:
        raise EntryError(
            f"expected {etc}/apt/sources.list or sources.list.d to name a Debian mirror (component main, "
            f"suite {' or '.join(sorted(suites))}), found none; name one there, or {OTHER_WAYS}"
        )
    return list(dict.fromkeys(found))


def _entries(etc_apt: Path) -> Iterator[Entry]:
    formats = {".list": parse_one_line, ".sources": parse_deb822}
    for path in [etc_apt / "sources.list", *sorted((etc_apt / "sources.list.d").glob("*"))]:
        if path.suffix in formats and path.is_file():
            yield from formats[path.suffix](path.read_text())


def parse_one_line(text: str) -> list[Entry]:
    """The entries of a file in the one-line format: deb [options] URI suite components."""
    lines = re.sub(r"#.*|\[[^\]]*\]", "", text).splitlines()
    words = [line.split() for line in lines if line.split()[:1] == ["deb"]]
    return [Entry(uri, suite, components) for _, uri, suite, *components in words]


def parse_deb822(text: str) -> list[Entry]:
    """The enabled entries of a file in the deb822 format: stanzas of `Field: values`, continued by indent."""
    entries = []
    text = re.sub(r"^#.*\n?", "", text, flags=re.M)
    for stanza in re.split(r"\n[ \t]*\n", text):
        joined = re.sub(r"\n[ \t]+", " ", stanza)
        pairs = re.findall(r"^([\w-]+):(.*)$", joined, re.M)
        fields = {name.lower(): value.split() for name, value in pairs}
        disabled = fields.get("enabled", ["yes"])[0].lower() in ("no", "false", "off", "without", "disable")
        if "deb" in fields.get("types", []) and not disabled:
            entries += [
                Entry(uri, suite, fields.get("components", []))
                for uri in fields.get("uris", [])
                for suite in fields.get("suites", [])
            ]
    return entries

"""The mirror is the one that the machine's apt sources name."""

from __future__ import annotations

import pytest

from tools.entry.apt_sources import Entry, mirrors, parse_deb822, parse_one_line
from tools.entry.report import EntryError

_ONE_LINE = """
# deb http://commented.invalid/debian bookworm main
deb http://mirror.invalid/debian bookworm main contrib # the archive
deb-src http://mirror.invalid/debian bookworm main
deb [ arch=amd64 signed-by=/k.gpg ] https://tools.invalid/apt stable-tools main
	deb  [trusted=yes]  mirror+file:/etc/mirrors bookworm-updates main
"""

_DEB822 = """\
# The archive.
Types: deb deb-src
# http://snapshot.invalid/2025
URIs: http://mirror.invalid/debian/
 http://second.invalid/debian
Suites: bookworm bookworm-updates
Components: main
Signed-By: /k.gpg

Types: deb
URIs: http://off.invalid/debian
Suites: bookworm
Components: main
Enabled: no

types: deb-src
uris: http://source.invalid/debian
suites: bookworm
components: main
"""


def test_one_line_format():
    """Binary entries with their options left out; comments and sources do not count."""
    assert parse_one_line(_ONE_LINE) == [
        Entry("http://mirror.invalid/debian", "bookworm", ["main", "contrib"]),
        Entry("https://tools.invalid/apt", "stable-tools", ["main"]),
        Entry("mirror+file:/etc/mirrors", "bookworm-updates", ["main"]),
    ]


def test_deb822_format():
    """Every URI with every suite of each enabled stanza; a comment may stand inside one."""
    suites = ("bookworm", "bookworm-updates")
    uris = ("http://mirror.invalid/debian/", "http://second.invalid/debian")
    assert parse_deb822(_DEB822) == [Entry(uri, suite, ["main"]) for uri in uris for suite in suites]


@pytest.fixture
def etc(tmp_path):
    """A folder like /etc of a Debian bookworm without sources."""
    (tmp_path / "apt/sources.list.d").mkdir(parents=True)
    (tmp_path / "os-release").write_text('PRETTY_NAME="Debian"\nID=debian\nVERSION_CODENAME=bookworm\n')
    return tmp_path


def test_both_formats_are_read_and_third_parties_left_out(etc):
    """The archive's own suite and main decide; what apt ignores (other suffixes) is ignored here."""
    (etc / "apt/sources.list").write_text(_ONE_LINE)
    (etc / "apt/sources.list.d/debian.sources").write_text(_DEB822)
    (etc / "apt/sources.list.d/old.sources.save").write_text(_DEB822.replace("mirror", "saved"))
    assert mirrors(etc) == ["http://mirror.invalid/debian", "http://second.invalid/debian"]


def test_a_machine_on_testing_counts_by_its_suites_name(etc):
    """Names like testing and sid stand beside the release's own."""
    (etc / "apt/sources.list").write_text("deb http://mirror.invalid/debian sid main\n")
    assert mirrors(etc) == ["http://mirror.invalid/debian"]


def test_no_mirror_is_an_error_that_names_the_files(etc):
    """What was looked for, where, and what else can be done."""
    with pytest.raises(EntryError, match=r"sources\.list.*bookworm.*bazelisk"):
        mirrors(etc)


def test_another_distribution_is_an_error(etc):
    """Debian's packages are not unpacked on the strength of another distribution's mirror."""
    (etc / "os-release").write_text("ID=ubuntu\nVERSION_CODENAME=noble\n")
    with pytest.raises(EntryError, match="found ubuntu"):
        mirrors(etc)

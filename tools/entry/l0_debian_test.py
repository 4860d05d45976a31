"""Which packages are taken, and when not."""

from __future__ import annotations

import hashlib

import pytest

from tools.entry import debian
from tools.entry.apt import Package, parse_index
from tools.entry.report import EntryError

_INDEX = """\
Package: bazel-bootstrap
Source: bazel-bootstrap (7.7.1+ds-8)
Version: 7.7.1+ds-8+b1
Architecture: amd64
Description: Tool
 Package: not a field
Filename: pool/main/b/bazel-bootstrap/bazel-bootstrap_7.7.1+ds-8+b1_amd64.deb
Size: 790064
SHA256: 8cf38b48

Package: zlib1g
Version: 1:1.3-1
Architecture: amd64
Size: 7
SHA256: 52c585b0
"""


def _package(name: str = "zlib1g", version: str = "1:1.3-1", sha256: str = "52c585b0") -> Package:
    return Package(name, version, size=7, sha256=sha256, filename=f"{name}.deb")


def test_the_index_is_read():
    """Name, version, size, hash, and the file name that apt gives a download (the colon escaped)."""
    bazel, zlib = parse_index(_INDEX)
    assert (bazel.name, bazel.version, bazel.size) == ("bazel-bootstrap", "7.7.1+ds-8+b1", 790064)
    assert zlib == Package("zlib1g", "1:1.3-1", 7, "52c585b0", "zlib1g_1%3a1.3-1_amd64.deb")


def test_recorded_versions_with_their_hashes_are_no_news():
    """The suite as recorded."""
    assert debian.moved_on([_package()], {"zlib1g": _package()}) == []


def test_a_newer_version_and_a_new_package_are_told():
    """The suite has moved on: both are reported, neither is an error."""
    newer, new = _package(version="1:1.4-1"), _package(name="libabsl2027")
    assert debian.moved_on([newer, new], {"zlib1g": _package()}) == [newer, new]


def test_a_recorded_version_with_another_hash_is_an_error():
    """Somebody serves other bytes under the recorded version."""
    with pytest.raises(EntryError, match=r"expected sha256 52c585b0.*offers ffff"):
        debian.moved_on([_package(sha256="ffff")], {"zlib1g": _package()})


@pytest.mark.parametrize("version", ["8.4.2-1", "4.2.3+ds-9"])
def test_another_bazel_series_is_an_error_that_tells_what_to_do(version):
    """The workspace is written for Bazel 7."""
    with pytest.raises(EntryError, match=r"expected a Bazel 7\.x.*install bazelisk.*BAZEL="):
        debian.check_series([_package("bazel-bootstrap", version)])


def test_only_an_intact_file_counts(tmp_path):
    """Absent, half-loaded and altered files are all fetched again."""
    package = _package(sha256=hashlib.sha256(b"content").hexdigest())
    path = tmp_path / package.filename
    assert not debian.intact(package, tmp_path)
    for content, verdict in ((b"cont", False), (b"CONTENT", False), (b"content", True)):
        path.write_bytes(content)
        assert debian.intact(package, tmp_path) == verdict


@pytest.mark.parametrize("arch", ["amd64", "arm64"])
def test_the_record_is_a_bazel_7_with_a_java_and_a_patchelf(arch):
    """debian.lock.json is whole for both architectures."""
    record = debian.recorded(arch)
    assert debian.check_series(list(record.values())).startswith("7.")
    assert {"bazel-bootstrap-data", "libc6", "patchelf"} <= record.keys()
    assert any(name.endswith("-jre-headless") for name in record)
    assert all(len(package.sha256) == 64 for package in record.values())


def test_an_unknown_architecture_has_no_record():
    """Nothing is recorded, so everything is the suite's present version."""
    assert debian.recorded("riscv64") == {}

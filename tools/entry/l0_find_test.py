"""Which Bazel runs."""

from __future__ import annotations

import json

import pytest

from tools.entry import find
from tools.entry.report import EntryError
from tools.entry.tree import STAMP, tree_path


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    """An empty cache; returns its project folder."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache/hyper_parallel_tests"


@pytest.fixture
def install(tmp_path):
    """Puts a script on the search path `tmp_path/<folder>` and returns that folder."""

    def install(name, text, folder="bin"):
        (tmp_path / folder).mkdir(exist_ok=True)
        path = tmp_path / folder / name
        path.write_text(f"#!/bin/sh\n{text}\n")
        path.chmod(0o755)
        return str(path.parent)

    return install


def _found(path, **variables):
    return find.bazel({"PATH": path, **variables}, may_provide=False)


def _tells(version):
    return f'[ "$1" = --version ] && echo "bazel {version}"'


def test_bazelisks_choice_comes_first(install):
    """With BAZEL_REAL set this script is bazelisk's hook and hands over to what it names."""
    path = install("real", "") + "/real"
    found = _found(install("bazelisk", ""), BAZEL_REAL=path, BAZEL="/other")
    assert found.command == [path]


def test_the_users_choice_comes_next(install):
    """BAZEL names one."""
    path = install("mine", "") + "/mine"
    assert _found(install("bazelisk", ""), BAZEL=path).command == [path]


def test_a_choice_that_is_not_there_is_an_error():
    """Nothing else is taken in its place."""
    with pytest.raises(EntryError, match="expected an executable Bazel at /nowhere"):
        _found("", BAZEL="/nowhere")


def test_bazelisk_on_the_path_is_taken_before_a_bazel(install):
    """It brings the version that .bazelversion pins."""
    folder = install("bazel", _tells("7.6.0"))
    assert _found(install("bazelisk", "")).command == [f"{folder}/bazelisk"]


@pytest.mark.parametrize("version", ["7.7.1", "7.4.0"])
def test_a_bazel_of_the_right_series_is_taken(install, version):
    """Any 7.x, with the version that it tells."""
    folder = install("bazel", _tells(version))
    found = _found(folder)
    assert (found.command, found.version) == ([f"{folder}/bazel"], version)


@pytest.mark.parametrize("answer", [_tells("4.2.3- (@non-git)"), _tells("8.4.0"), _tells("no_version"), "exit 1", ""])
def test_another_bazel_is_passed_over(install, answer):
    """Too old, too new, without a version, broken: the next one on the path is asked."""
    path = f"{install('bazel', answer)}:{install('bazel', _tells('7.7.1'), 'later')}"
    assert _found(path).command[0].endswith("later/bazel")


def test_a_bazel_is_asked_for_its_version_once(install, tmp_path):
    """Not in every call; again when the file has changed."""
    asked = tmp_path / "asked"
    folder = install("bazel", f"echo x >> {asked}; {_tells('7.7.1')}")
    assert _found(folder).version == _found(folder).version == "7.7.1"
    assert asked.read_text() == "x\n"
    install("bazel", f"echo y >> {asked}; {_tells('7.7.2')}  # changed")
    assert _found(folder).version == "7.7.2"


def test_a_bazel_that_is_bazelisk_is_not_asked(install, tmp_path):
    """It would download a Bazel, or call this script back."""
    asked = tmp_path / "asked"
    folder = install("bazel", f"touch {asked}  # BAZELISK_SKIP_WRAPPER")
    assert _found(folder).how == "bazel on PATH, which is bazelisk"
    (tmp_path / "npm").mkdir()
    target = install("bazelisk.js", f"touch {asked}")
    (tmp_path / "npm/bazel").symlink_to(f"{target}/bazelisk.js")
    assert _found(str(tmp_path / "npm")).how == "bazel on PATH, which is bazelisk"
    assert not asked.exists()


def test_this_script_is_not_a_bazel(install, tmp_path):
    """tools/ of any checkout may be on the path."""
    folder = install("bazel", _tells("7.7.1"), "tools")
    (tmp_path / "tools/entry").mkdir()
    (tmp_path / "tools/entry/find.py").touch()
    with pytest.raises(EntryError, match="found none"):
        _found(folder)


def test_a_wrapper_around_this_script_ends_no_circle(install, tmp_path):
    """Asked for its version it calls this script, which must see that and not ask it back."""
    told = tmp_path / "told"
    folder = install("bazel", f"env > {told}; exit 1")
    with pytest.raises(EntryError, match="found none"):
        _found(folder)
    variables = dict(line.partition("=")[::2] for line in told.read_text().splitlines())
    with pytest.raises(EntryError, match="leads back"):
        find.bazel(variables)


def test_the_bazel_provided_earlier_is_taken_last(cache):
    """Its version is the stamp's, since Debian's Bazel tells none."""
    with pytest.raises(EntryError, match="expected bazelisk or a Bazel 7"):
        _found("")
    root = tree_path(cache)
    root.mkdir(parents=True)
    (root / "bazel").write_text("")
    places = dict.fromkeys(["bazel", "bazelrc", "install_base", "jre"], "bazel")
    (root / STAMP).write_text(json.dumps({"root": str(root), "version": "7.7.1", **places, "files": {"bazel": 0}}))
    found = _found("")
    assert (found.command[0], found.version, found.cannot_tell_version) == (f"{root}/bazel", "7.7.1", True)

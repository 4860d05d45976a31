"""The tree in the cache is used only if it is whole."""

from __future__ import annotations

import json

import pytest

from tools.entry import tree


@pytest.fixture
def whole(tmp_path):
    """A tree of two files with a right stamp."""
    root = tmp_path / "tree"
    (root / "bin").mkdir(parents=True)
    (root / "bin/bazel").write_text("program")
    (root / "rc").write_text("")
    places = {"bazel": "bin/bazel", "bazelrc": "rc", "install_base": "base", "jre": "jre"}
    stamp = {"root": str(root), "version": "7.7.1", **places, "files": {"bin/bazel": 7, "rc": 0}}
    (root / tree.STAMP).write_text(json.dumps(stamp))
    return root


def test_a_whole_tree_is_used(whole):
    """The command runs its Bazel with its own settings, and with no others of the machine."""
    command = tree.command(tree.read_stamp(whole))
    assert command[0] == f"{whole}/bin/bazel"
    assert "--nosystem_rc" in command
    assert f"--bazelrc={whole}/rc" in command
    assert f"--install_base={whole}/base" in command


def _remove(root):
    (root / "rc").unlink()


def _truncate(root):
    (root / "bin/bazel").write_text("prog")


def _move(root):
    root.rename(root.with_name("elsewhere")).with_name("elsewhere").rename(root)
    stamp = json.loads((root / tree.STAMP).read_text())
    (root / tree.STAMP).write_text(json.dumps({**stamp, "root": "/made/for/another/place"}))


def _half_stamp(root):
    text = (root / tree.STAMP).read_text()
    (root / tree.STAMP).write_text(text[: len(text) // 2])


def _no_stamp(root):
    (root / tree.STAMP).unlink()


@pytest.mark.parametrize("damage", [_remove, _truncate, _move, _half_stamp, _no_stamp])
def test_a_damaged_tree_is_not(whole, damage):
    """A missing or shortened file, another place, no readable stamp."""
    damage(whole)
    assert tree.read_stamp(whole) is None


def test_the_trees_name_changes_with_what_is_asked_for(tmp_path, monkeypatch):
    """Another lock file or another recipe is another tree; checkouts with the same share one."""
    lock = tmp_path / "lock.json"
    monkeypatch.setattr(tree, "LOCK_FILE", lock)
    lock.write_text("one")
    first = tree.tree_path(tmp_path)
    assert tree.tree_path(tmp_path) == first
    monkeypatch.setattr(tree, "RECIPE", tree.RECIPE + 1)
    second = tree.tree_path(tmp_path)
    lock.write_text("two")
    assert len({first, second, tree.tree_path(tmp_path)}) == 3


def test_the_cache_follows_the_users_settings(monkeypatch):
    """XDG_CACHE_HOME, else ~/.cache."""
    monkeypatch.setenv("XDG_CACHE_HOME", "/somewhere")
    assert str(tree.cache_home()) == "/somewhere/hyper_parallel_tests"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", "/home/u")
    assert str(tree.cache_home()) == "/home/u/.cache/hyper_parallel_tests"

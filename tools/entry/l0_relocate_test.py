"""The tree's links, class path and settings lead into the tree."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from tools.entry import relocate


def test_absolute_links_lead_into_the_tree(tmp_path):
    """A link to a file that a package brings becomes relative; one that leads nowhere goes away."""
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc/jvm.cfg").write_text("settings")
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib/jvm.cfg").symlink_to("/etc/jvm.cfg")
    (tmp_path / "lib/cacerts").symlink_to("/etc/ssl/certs/java/cacerts")
    (tmp_path / "lib/relative").symlink_to("../etc/jvm.cfg")
    relocate._relink(tmp_path)
    assert os.readlink(tmp_path / "lib/jvm.cfg") == "../etc/jvm.cfg"
    assert (tmp_path / "lib/relative").read_text() == "settings"
    assert not os.path.lexists(tmp_path / "lib/cacerts")


def test_the_class_path_names_the_trees_jars(tmp_path):
    """Those that are there, at their final place, and the ones that Debian's list lacks."""
    layout = relocate.Layout(tmp_path / "scratch")
    jars = layout.root / "usr/share/java"
    jars.mkdir(parents=True)
    for name in ("guava.jar", "perfmark-api.jar"):
        (jars / name).touch()
    layout.install_base.mkdir(parents=True)
    listing = layout.install_base / "bazel_classpath_debian_depends.txt"
    listing.write_text("/usr/share/java/guava.jar\n/usr/share/java/absent.jar\n")
    relocate._rewrite_class_path(layout, Path("/final"))
    assert listing.read_text() == "/final/usr/share/java/guava.jar\n/final/usr/share/java/perfmark-api.jar\n"


def test_the_rule_sets_are_named():
    """For every command, and so that a path with a blank stays one word."""
    lines = relocate.overrides(Path("/a b")).splitlines()
    assert 'common "--override_repository=rules_python=/a b/rules/python"' in lines
    assert all(line.startswith('common "--override_repository=') for line in lines)


@pytest.mark.parametrize(("tree", "mounted"), [("/tmp/cache/tree", True), ("/home/u/tree", False)])
def test_a_tree_below_tmp_is_shown_to_the_tests(tree, mounted):
    """Their own /tmp would hide it."""
    text = relocate._bazelrc(Path(tree), Path(tree, "base"))
    assert (f'common "--sandbox_add_mount_pair={tree}"' in text) == mounted


def test_programs_are_told_from_libraries():
    """By the program header that asks for a dynamic loader."""
    maps = Path("/proc/self/maps").read_text().splitlines()
    library = next(line.split()[-1] for line in maps if "/libm.so" in line)
    assert relocate._is_program(Path(sys.executable))
    assert not relocate._is_program(Path(library))

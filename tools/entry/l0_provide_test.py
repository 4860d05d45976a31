"""A set-up is made whole or not at all, once, and goes on where an interrupted one stopped."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tools.entry import debian, provide, relocate, tree

_PROVIDE = """
import sys
from pathlib import Path
from tools.entry import debian, provide, relocate
from tools.entry.l0_provide_test import build

debian.fetch = lambda home, progress: print("fetches", flush=True) or sys.stdin.readline() and []
relocate.build = build
provide.provide(Path(sys.argv[1]))
print("done", flush=True)
"""


def build(packages, debs, scratch, target, progress):
    """Stands for the relocation: the least that a tree needs, with a Bazel that starts."""
    for path in ("usr/lib/jvm/java-25-openjdk-x/bin/java", "usr/lib/x/ld-linux-x.so.2", "usr/bin/bazel"):
        (scratch / path).parent.mkdir(parents=True, exist_ok=True)
        (scratch / path).write_text("#!/bin/sh\n")
        (scratch / path).chmod(0o755)
    return "7.7.1"


@pytest.fixture
def parts(monkeypatch):
    """Replaces the download and the relocation; what is in the list happens instead, one entry a set-up."""
    outcomes = []
    monkeypatch.setattr(debian, "fetch", lambda home, progress: [])

    def build_or_fail(*arguments):
        outcome = outcomes.pop(0)
        if isinstance(outcome, BaseException):
            build(*arguments)
            raise outcome
        return outcome(*arguments)

    monkeypatch.setattr(relocate, "build", build_or_fail)
    return outcomes


def test_an_interrupted_set_up_leaves_no_tree_and_is_made_again(tmp_path, parts):
    """Half a tree never lies where a whole one is expected."""
    parts += [KeyboardInterrupt(), build]
    with pytest.raises(KeyboardInterrupt):
        provide.provide(tmp_path)
    assert not tree.tree_path(tmp_path).exists()
    stamp = provide.provide(tmp_path)
    assert stamp == tree.read_stamp(tree.tree_path(tmp_path))
    assert not list((tmp_path / "bazel").glob("*.partial"))


def test_a_whole_tree_is_not_made_again(tmp_path, parts):
    """The second call finds it."""
    parts += [build]
    assert provide.provide(tmp_path) == provide.provide(tmp_path)


def test_a_damaged_tree_is_made_again(tmp_path, parts, capfd):
    """And the user is told that this is the reason."""
    parts += [build, build]
    stamp = provide.provide(tmp_path)
    os.unlink(f"{stamp['root']}/{stamp['bazel']}")
    provide.provide(tmp_path)
    assert "damaged" in capfd.readouterr().err
    assert tree.read_stamp(tree.tree_path(tmp_path)) == stamp


def test_a_bazel_that_does_not_start_is_not_kept(tmp_path, parts):
    """The error carries what it said."""

    def build_broken(packages, debs, scratch, target, progress):
        build(packages, debs, scratch, target, progress)
        (scratch / "usr/bin/bazel").write_text("#!/bin/sh\necho no such library >&2; exit 1\n")
        return "7.7.1"

    parts += [build_broken]
    with pytest.raises(provide.EntryError, match=r"no such library(.|\n)*does not start"):
        provide.provide(tmp_path)
    assert tree.read_stamp(tree.tree_path(tmp_path)) is None


def test_two_at_once_share_one_set_up(tmp_path):
    """The second waits for the first, then uses its tree without a download of its own."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-S", "-c", _PROVIDE, str(tmp_path)]
    pipe = subprocess.PIPE
    first = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True, env=environment)
    assert first.stdout.readline() == "fetches\n"
    second = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True, env=environment)
    assert "waiting for process" in second.stderr.readline()
    assert first.communicate("go on\n")[0] == "done\n"
    assert second.communicate()[0] == "done\n"

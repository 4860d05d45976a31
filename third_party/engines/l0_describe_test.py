"""Which version of an engine a test sees."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from packaging.specifiers import SpecifierSet

from third_party.engines.describe import combined_version, describe, installed_version, read_version


def commit(checkout: Path, day: str, **texts: str) -> str:
    """Commits these texts by module on that day; returns the commit's id."""
    for module, text in texts.items():
        path = checkout / "engine" / f"{module.replace('__', '/')}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    git(checkout, "add", ".")
    git(checkout, "commit", "-q", "-m", day, GIT_COMMITTER_DATE=f"{day}T12:00:00Z", GIT_AUTHOR_DATE=f"{day}T12:00:00Z")
    return git(checkout, "rev-parse", "HEAD")


def git(checkout: Path, *words: str, **environment: str) -> str:
    identity = {f"GIT_{who}_{what}": "somebody" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}
    environment |= identity | {"PATH": os.environ["PATH"], "GIT_CONFIG_GLOBAL": os.devnull, "HOME": str(checkout)}
    command = ["git", *words]
    return subprocess.run(
        command, cwd=checkout, env=environment, capture_output=True, text=True, check=True
    ).stdout.strip()


@pytest.fixture
def checkout(tmp_path) -> Path:
    """An engine 0.3 with a history: mesh in January, pipeline in February."""
    (tmp_path / "engine").mkdir()
    (tmp_path / "engine/__init__.py").write_text("")
    (tmp_path / "setup.py").write_text("from setuptools import setup\nsetup(name='engine', version='0.3')\n")
    git(tmp_path, "init", "-q")
    commit(tmp_path, "2026-01-10", mesh__grid="one")
    commit(tmp_path, "2026-02-20", pipeline__stage="one")
    return tmp_path


def test_a_part_has_the_commit_that_last_touched_it(checkout):
    """A commit to the pipeline changes nothing about the mesh, so tests of the mesh keep their results."""
    before = describe(checkout, "engine", ["mesh/*"])
    newest = commit(checkout, "2026-03-05", pipeline__stage="two")
    assert describe(checkout, "engine", ["mesh/*"]) == before
    assert before["date"] == "2026-01-10"
    assert describe(checkout, "engine", ["pipeline/*"])["revision"] == newest


def test_the_version_is_that_of_the_newest_part_at_hand(checkout):
    """It grows with the history, so that a known defect can be bounded by a day."""
    parts = [describe(checkout, "engine", [pattern]) for pattern in ("mesh/*", "pipeline/*")]
    version = combined_version(parts)
    assert version == f"0.3.post20260220+g{parts[1]['revision'][:7]}"
    assert SpecifierSet(">=0.3.post20260201").contains(version)
    assert not SpecifierSet(">=0.3.post20260201").contains(combined_version(parts[:1]))
    assert SpecifierSet(f"=={version}").contains(version)


def test_edits_beyond_the_history_show(checkout):
    """Of the part that was edited, by the digest and by the version."""
    before = describe(checkout, "engine", ["mesh/*"])
    (checkout / "engine/mesh/grid.py").write_text("edited")
    (checkout / "engine/mesh/more.py").write_text("new")
    after = describe(checkout, "engine", ["mesh/*"])
    assert combined_version([after]) == combined_version([before]) + ".edited"
    assert after["digest"] != before["digest"]
    assert not describe(checkout, "engine", ["pipeline/*"])["edited"]


def test_without_a_history_the_engines_own_version_is_all(checkout):
    """An unpacked archive, also one inside another work tree, has a version and a digest."""
    inner = checkout / "unpacked"
    (inner / "engine").mkdir(parents=True)
    (inner / "engine/__init__.py").write_text("__version__ = '0.4'\n")
    found = describe(inner, "engine", ["*"])
    assert (found["version"], found["revision"], combined_version([found])) == ("0.4", "", "0.4")
    assert len(found["digest"]) == 64


@pytest.mark.parametrize(
    ("name", "text", "version"),
    [
        ("pyproject.toml", "[project]\nname = 'engine'\nversion = '1.4'\n", "1.4"),
        ("setup.py", "import setuptools\nsetuptools.setup(name='engine', version='1.5rc1')\n", "1.5rc1"),
        ("engine/__init__.py", "__version__ = '1.6'\n", "1.6"),
        ("setup.py", "def read(): ...\nsetup(version=read())\n", "0"),
        ("setup.py", "setup(", "0"),
    ],
)
def test_where_the_engines_own_version_is_read(tmp_path, name, text, version):
    """Nothing is run; 0 where the text does not tell."""
    (tmp_path / "engine").mkdir()
    (tmp_path / name).write_text(text)
    assert read_version(tmp_path, "engine") == version


def test_the_installed_version_is_of_what_would_be_imported(checkout, monkeypatch):
    """Without Bazel it comes from the checkout on the import path, and the engine is not imported for it."""
    monkeypatch.setattr(sys, "path", [*sys.path, str(checkout)])
    assert installed_version("engine").startswith("0.3.post20260220+g")
    assert "engine" not in sys.modules
    with pytest.raises(ModuleNotFoundError, match="no_such_engine: name a checkout by --repo_env=NO_SUCH_ENGINE_PATH="):
        installed_version("no_such_engine")

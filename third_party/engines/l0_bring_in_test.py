"""A checkout comes into the build as it is, or with an error that says what was expected."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

_TEXTS = {
    "setup.py": "from setuptools import setup\nsetup(name='engine', version='1.2')\n",
    "engine/__init__.py": (
        "from engine.mesh import Mesh\nfrom engine.pipeline.stage import Stage\n__all__ = ['Mesh', 'Stage']\n"
    ),
    "engine/mesh/__init__.py": "class Mesh: pass\n",
    "engine/pipeline/stage.py": "import engine\nclass Stage: mesh = engine.Mesh\n",
    "engine/pipeline/table.yaml": "stages: 2\n",
}


@pytest.fixture
def checkout(tmp_path) -> Path:
    for name, text in _TEXTS.items():
        path = tmp_path / "checkout" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return tmp_path / "checkout"


def bring_in(checkout: Path, into: Path) -> subprocess.CompletedProcess[str]:
    script = Path("third_party/engines/bring_in.py")
    options = [f"--checkout={checkout}", f"--origin=ENGINE_PATH={checkout}", f"--into={into}", "--package=engine"]
    command = [sys.executable, "-B", "-s", "-E", script, *options]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def brought(checkout: Path, into: Path) -> dict:
    done = bring_in(checkout, into)
    assert not done.returncode, done.stderr
    return json.loads(done.stdout)


def imported(folder: Path, code: str) -> str:
    command = [sys.executable, "-B", "-S", "-c", f"import sys; sys.path.insert(0, {str(folder)!r})\n{code}"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.stdout.strip() or done.stderr.strip().splitlines()[-1]


def test_a_library_lists_its_files(checkout, tmp_path):
    """Modules, data and the description are named, and are there."""
    found = {library["folders"][0]: library for library in brought(checkout, tmp_path / "into")["libraries"]}
    assert found["pipeline"] == {
        "folders": ["pipeline"],
        "needs": ["", "mesh"],
        "srcs": ["engine/pipeline/stage.py"],
        "data": ["engine_info/pipeline.json", "engine/pipeline/table.yaml"],
    }
    listed = {file for library in found.values() for file in library["srcs"] + library["data"]}
    there = {str(path.relative_to(tmp_path / "into")) for path in (tmp_path / "into").rglob("*") if path.is_file()}
    assert listed == there


def test_what_the_rule_must_watch_besides_the_package(checkout, tmp_path):
    """The file that the version is read from."""
    assert brought(checkout, tmp_path / "into")["watch"] == [str(checkout / "setup.py")]


def test_a_whole_engine_runs_its_own_init(checkout, tmp_path):
    """Where all that the root imports is at hand, it is the engine's own file that runs."""
    brought(checkout, tmp_path / "into")
    assert imported(tmp_path / "into", "import engine; print(engine.__all__, engine.Stage.mesh)") == (
        "['Mesh', 'Stage'] <class 'engine.mesh.Mesh'>"
    )


def test_a_part_of_an_engine_imports_on_first_use(checkout, tmp_path):
    """Without the pipeline the mesh is there, and the error for a stage says which module is missing."""
    brought(checkout, tmp_path / "into")
    for path in (tmp_path / "into/engine/pipeline").iterdir():
        path.unlink()
    assert imported(tmp_path / "into", "import engine; print('engine.mesh' in sys.modules)") == "False"
    assert imported(tmp_path / "into", "from engine import Mesh; print(Mesh)") == "<class 'engine.mesh.Mesh'>"
    assert imported(tmp_path / "into", "import engine; print(engine.mesh)").startswith("<module 'engine.mesh'")
    assert imported(tmp_path / "into", "from engine import Stage").startswith("ImportError: engine.Stage lies in")
    assert imported(tmp_path / "into", "import engine; engine.Stag").endswith("no attribute 'Stag'")


def test_a_root_with_code_of_its_own_is_left_alone(checkout, tmp_path):
    """Nothing stands in for a root that does more than hand on names."""
    text = _TEXTS["engine/__init__.py"] + "print('patched')\n"
    (checkout / "engine/__init__.py").write_text(text)
    brought(checkout, tmp_path / "into")
    assert (tmp_path / "into/engine/__init__.py").read_text() == text


@pytest.mark.parametrize(
    ("place", "message"),
    [
        ("nowhere", "nowhere: no such folder; expected a source checkout of engine"),
        ("checkout/setup.py", "setup.py: not a folder; expected a source checkout of engine"),
        ("checkout/engine", r"checkout/engine is a Python package itself; .* Give .*/checkout\?"),
        ("empty", r"no package engine in it; .*engine/__init__.py in it, found nothing\."),
        ("other", r"no package engine in it; .* found README.md, src\."),
    ],
)
def test_a_wrong_path_is_named_with_its_variable(checkout, tmp_path, place, message):
    """The error says what was given, what was expected there and what was found."""
    (tmp_path / "empty").mkdir()
    (tmp_path / "other/src").mkdir(parents=True)
    (tmp_path / "other/README.md").touch()
    done = bring_in(tmp_path / place, tmp_path / "into")
    assert done.returncode == 1
    assert done.stderr.startswith(f"ENGINE_PATH={tmp_path / place}")
    assert "Traceback" not in done.stderr
    assert re.search(message, done.stderr), done.stderr

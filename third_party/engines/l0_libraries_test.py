"""How an engine's folders become libraries, from their imports."""

from __future__ import annotations

from pathlib import Path

import pytest

from third_party.engines.imports import Package
from third_party.engines.libraries import libraries


@pytest.fixture
def needs(tmp_path):
    """Writes a package `engine` with these texts by path and returns what each of its folders needs."""

    def written(texts: dict[str, str], leave_out: tuple[str, ...] = ()) -> dict[tuple[str, ...], tuple[str, ...]]:
        return {one.folders: one.needs for one in libraries(package(tmp_path / "engine", texts, leave_out))}

    return written


def package(root: Path, texts: dict[str, str], leave_out: tuple[str, ...] = ()) -> Package:
    for name, text in ({"__init__.py": ""} | texts).items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return Package(root, leave_out)


_REFERENCES = {
    "module": "import engine.mesh.grid",
    "module under another name": "import engine.mesh.grid as grid",
    "module from its folder": "from engine.mesh import grid",
    "name": "from engine.mesh.grid import Grid",
    "relative module": "from ..mesh import grid",
    "relative name": "from ..mesh.grid import Grid",
    "relative folder": "from .. import mesh",
    "in a function": "def late():\n    from engine.mesh import grid",
    "in a branch": "try:\n    import engine.mesh\nexcept ImportError:\n    pass",
    "by its dotted name": "import importlib\nimportlib.import_module('engine.mesh.grid')",
    "by a dotted name in parts": "import importlib\nimportlib.import_module(f'engine.mesh.{name}')",
}


@pytest.mark.parametrize("text", _REFERENCES.values(), ids=_REFERENCES)
def test_a_folder_needs_what_its_modules_import(needs, text):
    """Absolute and relative imports count, at the top, in functions and by name."""
    found = needs({"shard/api.py": text, "mesh/__init__.py": "", "mesh/grid.py": "", "pipeline/stage.py": ""})
    assert found[("shard",)] == ("", "mesh")
    assert found[("pipeline",)] == ("",)


def test_a_relative_import_in_an_init_starts_at_its_own_folder(needs):
    """One dot in `shard/__init__.py` is `shard`, whose own folder of operators is meant."""
    found = needs({"shard/__init__.py": "from .ops import table", "shard/ops/table.py": "", "ops/table.py": ""})
    assert found == {("",): (), ("ops",): ("",), ("shard", "shard/ops"): ("",)}


def test_other_packages_do_not_count(needs):
    """torch, the standard library and names that only begin alike are not the engine's."""
    text = "import torch\nfrom json import loads\nimport engine_room.mesh\nNOTE = 'see engine.mesh for more'"
    assert needs({"shard/api.py": text, "mesh/grid.py": ""})[("shard",)] == ("",)


def test_folders_that_need_each_other_are_one_library(needs):
    """A cycle of folders must not become a cycle of libraries, however long it is."""
    found = needs(
        {
            "a/one.py": "import engine.b.one",
            "b/one.py": "import engine.c.one",
            "c/one.py": "def late():\n    import engine.a.one",
            "user/one.py": "import engine.c.one",
        }
    )
    assert found == {("",): (), ("a", "b", "c"): ("",), ("user",): ("", "a")}


def test_a_name_of_the_root_leads_to_where_the_root_has_it_from(needs):
    """`from engine import Mesh` needs the mesh and nothing else that the root imports."""
    root = "from .mesh.grid import Mesh\nfrom .pipeline.stage import Stage\n__version__ = '1'\n"
    texts = {"__init__.py": root, "mesh/grid.py": "", "pipeline/stage.py": ""}
    for text in ("from engine import Mesh", "import engine\nengine.Mesh()", "import engine as e\ne.Mesh()"):
        assert needs(texts | {"shard/api.py": text})[("shard",)] == ("", "mesh")
    assert needs(texts | {"shard/api.py": "from engine import *"})[("shard",)] == ("", "mesh", "pipeline")


def test_a_root_that_does_more_than_hand_on_names_is_needed_as_it_is(needs):
    """Code in the root must run, so whoever imports from the package needs all that the root imports."""
    found = needs({"__init__.py": "from .mesh.grid import Mesh\nprint(Mesh)", "mesh/grid.py": "", "shard/api.py": ""})
    assert found == {("", "mesh"): (), ("shard",): ("",)}


def test_a_module_needs_the_packages_around_it(needs):
    """Python runs `core/__init__.py` before `core/shard/api.py`."""
    found = needs({"core/__init__.py": "import engine.mesh.grid", "core/shard/api.py": "", "mesh/grid.py": ""})
    assert found[("core/shard",)] == ("", "core")
    assert found[("core",)] == ("", "mesh")


def test_what_is_left_out_is_neither_there_nor_needed(needs):
    """A folder for another framework, imported in one branch only, does not tie the others together."""
    texts = {"platform/torch/api.py": "", "platform/other/api.py": "import engine.shard.api", "shard/api.py": ""}
    texts["platform/api.py"] = "def one():\n    import engine.platform.other.api"
    assert needs(texts, ("platform/other",)) == {
        ("",): (),
        ("platform",): ("",),
        ("platform/torch",): ("",),
        ("shard",): ("",),
    }


def test_a_file_that_does_not_parse_needs_nothing(needs):
    """Half-written code fails in the tests that import it, not in the build of all others."""
    assert needs({"shard/api.py": "from engine.mesh import (", "mesh/grid.py": ""})[("shard",)] == ("",)


def test_data_belong_to_the_nearest_folder_with_a_module(tmp_path):
    """A table beside or below a module comes along with it; compiled files do not."""
    texts = {
        "shard/api.py": "",
        "shard/yaml/ops.yaml": "",
        "notes.txt": "",
        "shard/__pycache__/api.cpython-311.pyc": "",
    }
    files = {one.folders[0]: one.files for one in libraries(package(tmp_path / "engine", texts))}
    assert files == {"": ("__init__.py", "notes.txt"), "shard": ("shard/api.py", "shard/yaml/ops.yaml")}

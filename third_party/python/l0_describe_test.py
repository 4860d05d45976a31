"""What the fingerprint of an environment takes in."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest


def described(python: str | Path, *flags: str, **environment: str) -> dict:
    script = Path("third_party/python/describe.py").resolve()
    command = [python, "-I", script, *flags]
    done = subprocess.run(command, env={"PATH": os.defpath} | environment, capture_output=True, text=True, check=True)
    return json.loads(done.stdout)


@pytest.fixture
def environment(tmp_path) -> Path:
    """A virtual environment with one package, leaf 1.0."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / "venv"], check=True)
    information = site(tmp_path / "venv") / "leaf-1.0.dist-info"
    information.mkdir()
    (information / "METADATA").write_text("Metadata-Version: 2.1\nName: leaf\nVersion: 1.0\n")
    (information / "RECORD").write_text("leaf.py,sha256=one,1\nleaf-1.0.dist-info/RECORD,,\n")
    return tmp_path / "venv"


def site(environment: Path) -> Path:
    return environment / "lib/python3.11/site-packages"


def test_a_virtual_environment_is_its_packages_and_the_real_interpreter(environment):
    """Tests run the interpreter behind the environment, with the environment's packages to import."""
    found = described(environment / "bin/python")
    assert found["interpreter"] == os.path.realpath(sys.executable)
    assert found["import_paths"] == [str(site(environment))]
    assert list(found["fingerprint"]["packages"]) == ["leaf==1.0"]
    assert str(site(environment) / "leaf-1.0.dist-info/RECORD") in found["watch"]


def test_another_build_of_the_same_version_is_another_environment(environment):
    """A package's list of files decides, not its version alone."""
    before = described(environment / "bin/python")["digest"]
    record = site(environment) / "leaf-1.0.dist-info/RECORD"
    record.write_text(record.read_text().replace("one", "two"))
    assert described(environment / "bin/python")["digest"] != before


def test_a_locked_environment_is_its_lock(tmp_path):
    """Where the packages come from a lock, the lock stands for them, and nothing installed counts."""
    lock = tmp_path / "requirements_cpu.lock"
    digests = set()
    for text in ("leaf==1.0", "leaf==2.0", "leaf==1.0"):
        lock.write_text(text)
        found = described(sys.executable, f"--lock={lock}")
        assert found["import_paths"] == []
        digests.add(found["digest"])
    assert len(digests) == 2


def test_a_new_cann_is_another_environment(tmp_path):
    """The toolkit's version is part of the fingerprint, and its file is watched."""
    digests = []
    for version in ("8.1", "8.2"):
        (tmp_path / "runtime").mkdir(exist_ok=True)
        (tmp_path / "runtime/version.info").write_text(f"Version={version}\n")
        found = described(sys.executable, "--device=npu", ASCEND_TOOLKIT_HOME=str(tmp_path))
        assert found["fingerprint"]["accelerator"][f"{tmp_path}/runtime/version.info"] == f"Version={version}"
        assert f"{tmp_path}/runtime/version.info" in found["watch"]
        digests.append(found["digest"])
    assert digests[0] != digests[1]


def test_of_the_callers_environment_only_the_vendors_part_is_taken(tmp_path):
    """What CANN's set-up script exported reaches the tests; the caller's own paths do not."""
    (tmp_path / "lib64").mkdir()
    found = described(
        sys.executable,
        "--device=npu",
        ASCEND_TOOLKIT_HOME=str(tmp_path),
        LD_LIBRARY_PATH=f"/home/somebody/lib:{tmp_path}/lib64",
        PATH=f"/home/somebody/bin:{tmp_path}/bin",
        PYTHONPATH=f"{tmp_path}/python/site-packages:/home/somebody/python",
    )
    assert found["variables"] == {
        "ASCEND_TOOLKIT_HOME": str(tmp_path),
        "LD_LIBRARY_PATH": f"{tmp_path}/lib64",
    }
    assert found["executable_paths"] == [f"{tmp_path}/bin"]
    assert found["import_paths"][-1] == f"{tmp_path}/python/site-packages"
    assert not [path for path in found["import_paths"] if "somebody" in path]

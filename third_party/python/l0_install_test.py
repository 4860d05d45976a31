"""The installer against real pip and small wheels: what it builds, and what it says when it cannot."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

LOCK_NAME = "third_party/python/requirements_cpu.lock"


@pytest.fixture
def wheels(tmp_path) -> Path:
    """A folder with the wheel leaf 1.0, the only place that pip may look at."""
    folder = tmp_path / "wheels"
    folder.mkdir()
    with zipfile.ZipFile(folder / "leaf-1.0-py3-none-any.whl", "w") as wheel:
        wheel.writestr("leaf.py", "NAMES = {'a', 'b', 'c'}\n")
        wheel.writestr("leaf-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: leaf\nVersion: 1.0\n")
        wheel.writestr("leaf-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr("leaf-1.0.dist-info/RECORD", "")
    return folder


@pytest.fixture
def leaf_hash(wheels) -> str:
    return hashlib.sha256((wheels / "leaf-1.0-py3-none-any.whl").read_bytes()).hexdigest()


def run_install(folder: Path, wheels: Path, lock: str, python: str = sys.executable, **environment: str):
    """Installs the lock's text into folder/site."""
    lock_file = folder / "requirements_cpu.lock"
    lock_file.write_text(lock)
    command = [python, "-I", str(Path("third_party/python/install.py").resolve())]
    command += [f"--lock={lock_file}", f"--lock-name={LOCK_NAME}", f"--target={folder / 'site'}"]
    pip = {
        "PIP_NO_INDEX": "1",
        "PIP_FIND_LINKS": str(wheels),
        "PIP_CONFIG_FILE": os.devnull,
        "PATH": os.defpath,
    }
    return subprocess.run(command, env=pip | environment, capture_output=True, text=True, check=False)


def test_the_same_lock_gives_the_same_bytes_in_any_place(tmp_path, wheels, leaf_hash):
    """Sources and bytecode carry no time, no path and no order of a hash table."""
    for place, seed in (("one", "1"), ("another", "2")):
        (tmp_path / place).mkdir()
        lock = f"leaf==1.0 --hash=sha256:{leaf_hash}\n"
        done = run_install(tmp_path / place, wheels, lock, PYTHONHASHSEED=seed)
        assert (done.returncode, done.stderr) == (0, "")
    one, another = (contents(tmp_path / place / "site") for place in ("one", "another"))
    assert "__pycache__/leaf.cpython-311.pyc" in one
    assert one == another


def contents(site: Path) -> dict[str, bytes]:
    return {str(path.relative_to(site)): path.read_bytes() for path in site.rglob("*") if path.is_file()}


def test_a_wrong_hash_names_the_package_both_hashes_and_the_file(tmp_path, wheels, leaf_hash):
    """Who reads it knows what arrived instead, and where to allow it."""
    done = run_install(tmp_path, wheels, f"leaf==1.0 --hash=sha256:{'0' * 64}\n")
    assert done.returncode == 1
    assert f"leaf==1.0 is not the file that {LOCK_NAME} names" in done.stderr
    assert f"expected sha256 {'0' * 64}, found {leaf_hash}" in done.stderr
    assert "tools/bazel run //third_party/python:lock -- cpu" in done.stderr


def test_a_missing_wheel_names_what_there_is_and_the_file_to_edit(tmp_path, wheels, leaf_hash):
    """A version that no index has is told apart from one that is spelled wrong."""
    done = run_install(tmp_path, wheels, f"leaf==2.0 --hash=sha256:{leaf_hash}\n")
    assert done.returncode == 1
    assert f"No wheel of leaf==2.0 for Python 3.11 on this platform, as {LOCK_NAME} asks; found: 1.0." in done.stderr
    assert "change the version in third_party/python/requirements_cpu.in" in done.stderr


def test_an_index_that_does_not_answer_is_not_taken_for_a_missing_wheel(tmp_path, wheels, leaf_hash):
    """The advice is about the network, not about the lock."""
    closed_port = {"PIP_INDEX_URL": "http://127.0.0.1:9/simple", "PIP_RETRIES": "1", "PIP_NO_INDEX": "0"}
    done = run_install(tmp_path, wheels, f"branch==1.0 --hash=sha256:{leaf_hash}\n", **closed_port)
    assert done.returncode == 1
    assert "No wheel of branch==1.0" in done.stderr
    assert "pip could not reach an index" in done.stderr


@pytest.mark.parametrize(
    ("line", "complaint"),
    [("leaf==1.0", "leaf==1.0 has no --hash in"), ("leaf --hash=sha256:" + "0" * 64, "leaf has no == in")],
    ids=["no-hash", "no-version"],
)
def test_a_line_edited_by_hand_is_refused(tmp_path, wheels, line, complaint):
    """Only a full pin is installed."""
    done = run_install(tmp_path, wheels, f"{line}\n")
    assert done.returncode == 1
    assert f"{complaint} {LOCK_NAME}" in done.stderr


def test_a_python_without_pip_is_told_how_to_get_it(tmp_path, wheels, leaf_hash):
    """Debian's Python has no pip of its own."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / "bare"], check=True)
    python = str(tmp_path / "bare/bin/python")
    done = run_install(tmp_path, wheels, f"leaf==1.0 --hash=sha256:{leaf_hash}\n", python=python)
    assert done.returncode == 1
    assert f"{python} has no pip" in done.stderr

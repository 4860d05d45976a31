"""The lock's form: one pin and one hash a package, the wheel that pip would take."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from third_party.python import lock


def package(name: str, *wheels: str) -> dict:
    return {
        "name": name,
        "version": "1.0",
        "wheels": [{"url": f"files/{name}-1.0-{wheel}.whl", "hashes": {"sha256": wheel}} for wheel in wheels],
    }


def test_a_wheel_for_this_python_is_better_than_the_stable_abi_than_pure_python():
    """One hash is written, so it must be that of the file that pip chooses."""
    wheels = ["py3-none-any", "cp39-abi3-manylinux_2_17_x86_64", "cp311-cp311-manylinux_2_17_x86_64"]
    assert lock.best_wheel(package("leaf", *wheels))["hashes"]["sha256"] == wheels[2]
    assert lock.best_wheel(package("leaf", *wheels[:2]))["hashes"]["sha256"] == wheels[1]


def test_a_lock_is_sorted_and_says_how_to_refresh_it():
    """Two refreshes differ only where a package does."""
    text = lock.render("cpu", [package("leaf", "py3-none-any"), package("branch", "py3-none-any")])
    assert "tools/bazel run //third_party/python:lock -- cpu" in text
    assert re.findall(r"^(\w+)==", text, re.MULTILINE) == ["branch", "leaf"]


@pytest.mark.parametrize("group", lock.GROUPS)
def test_each_group_is_locked_in_full(group):
    """Every line is a pin with exactly one hash."""
    lines = Path(f"third_party/python/requirements_{group}.lock").read_text().splitlines()
    body = [line for line in lines if not line.startswith("#")]
    assert body
    assert all(re.fullmatch(r"[a-z0-9-]+==[^ ]+ \\", line) for line in body[::2])
    assert all(re.fullmatch(r"    --hash=sha256:[0-9a-f]{64}", line) for line in body[1::2])


def test_the_groups_are_different_builds_of_one_torch():
    """CPU, CUDA and NPU environments exclude each other but test the same version."""
    pins = {}
    for group in ("cpu", "cuda", "npu"):
        text = Path(f"third_party/python/requirements_{group}.lock").read_text()
        pins[group] = re.search(r"^torch==(\S+)", text, re.MULTILINE).group(1)
    assert pins["cpu"] == pins["npu"] == f"{pins['cuda']}+cpu"

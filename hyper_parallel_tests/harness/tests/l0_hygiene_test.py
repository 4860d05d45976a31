"""What a case left behind, seen from inside its rank."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import torch

from hyper_parallel_tests.harness.hygiene import Snapshot


@pytest.fixture
def before() -> Snapshot:
    return Snapshot.take()


def test_nothing(before):
    """A case that leaves nothing has no leaks."""
    assert before.leaks(own_process_group=False) == []


def test_thread(before):
    """A thread that runs on is a leak; one that comes to its end is none."""
    done = threading.Event()
    thread = threading.Thread(target=done.wait, name="forgotten")
    thread.start()
    assert before.leaks(own_process_group=False) == ["left thread 'forgotten' running"]
    done.set()
    assert before.leaks(own_process_group=False) == []


def test_child_process(before):
    """A child that runs on is a leak, told with its command; a dead one is none, reaped or not."""
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    found = before.leaks(own_process_group=False)
    child.kill()
    assert len(found) == 1
    assert f"left child process {child.pid} running" in found[0]
    assert "input()" in found[0]
    assert before.leaks(own_process_group=False) == []
    child.communicate()


def test_environment(before, monkeypatch):
    """Changed variables are named, but for the one that pytest changes itself."""
    with monkeypatch.context() as changed:
        changed.setenv("A_NEW_ONE", "1")
        changed.delenv("PATH")
        changed.setenv("PYTEST_CURRENT_TEST", "another")
        found = before.leaks(own_process_group=False)
    assert found == ["left environment variables changed: A_NEW_ONE, PATH"]


def test_working_directory(before, monkeypatch, tmp_path):
    """A changed working directory is named."""
    with monkeypatch.context() as changed:
        changed.chdir(tmp_path)
        found = before.leaks(own_process_group=False)
    assert found == [f"left the working directory at {tmp_path}"]


def test_deleted_working_directory(before, monkeypatch, tmp_path: Path):
    """A working directory that is gone is a leak, not an error of the harness."""
    gone = tmp_path / "gone"
    gone.mkdir()
    with monkeypatch.context() as changed:
        changed.chdir(gone)
        gone.rmdir()
        found = before.leaks(own_process_group=False)
    assert found == ["left the working directory at a folder that is gone"]


def test_alarm(before):
    """An alarm that is still to come is a leak."""
    signal.alarm(3600)
    found = before.leaks(own_process_group=False)
    signal.alarm(0)
    assert found == ["left an alarm running, whose signal would end the rank in another case"]


def test_standard_output(before):
    """A closed or redirected standard output is a leak."""
    kept = os.dup(1)
    os.close(1)
    found = before.leaks(own_process_group=False)
    os.dup2(kept, 1)
    os.close(kept)
    assert found == ["left standard output closed or redirected"]
    assert before.leaks(own_process_group=False) == []


@pytest.mark.parametrize(
    ("change", "undo", "says"),
    [
        pytest.param(
            lambda: torch.set_grad_enabled(False), lambda: torch.set_grad_enabled(True), "gradient mode", id="gradient"
        ),
        pytest.param(
            lambda: torch.set_default_dtype(torch.float64),
            lambda: torch.set_default_dtype(torch.float32),
            "default dtype as torch.float64 (it was torch.float32)",
            id="dtype",
        ),
        pytest.param(
            lambda: torch.use_deterministic_algorithms(True),
            lambda: torch.use_deterministic_algorithms(False),
            "deterministic mode",
            id="deterministic",
        ),
        pytest.param(
            lambda: torch.set_autocast_enabled("cpu", True),
            lambda: torch.set_autocast_enabled("cpu", False),
            "CPU autocast",
            id="autocast",
        ),
    ],
)
def test_state_of_torch(before, change, undo, says):
    """Torch's global switches are to be put back."""
    change()
    found = before.leaks(own_process_group=False)
    undo()
    assert len(found) == 1
    assert says in found[0]

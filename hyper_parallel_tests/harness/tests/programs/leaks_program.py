"""Cases that leave something behind on one rank, a healthy one after each."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading

import pytest
import torch

from hyper_parallel_tests.harness.tests.programs.neighbour import neighbour

# Nothing but SIGKILL ends it.
_STUBBORN = """
import signal
signal.signal(signal.SIGTERM, signal.SIG_IGN)
print("up", flush=True)
signal.pause()
"""
_DAEMON = f"""
import os
if os.fork():
    os._exit(0)
os.setsid()
{_STUBBORN}
"""


def spawn(program: str) -> subprocess.Popen:
    """Start a Python program and wait until it says that it is up."""
    child = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
    assert child.stdout.readline() == "up\n"
    return child


def test_thread(world):
    threading.Thread(target=threading.Event().wait, name="forgotten", daemon=True).start()


test_neighbour_after_thread = neighbour


def test_child_process(world):
    spawn(_STUBBORN)


test_neighbour_after_child_process = neighbour


def test_daemon(world):
    spawn(_DAEMON).wait()


test_neighbour_after_daemon = neighbour


def test_child_process_that_was_told_to_end(world):
    spawn(_STUBBORN).kill()


def test_thread_and_child_process_that_end(world):
    thread = threading.Thread(target=spawn(_STUBBORN).kill)
    thread.start()


def test_environment_variable(world):
    os.environ["OMP_NUM_THREADS"] = "7"


test_neighbour_after_environment_variable = neighbour


def test_working_directory(world, artifacts):
    os.chdir(artifacts)


test_neighbour_after_working_directory = neighbour


def test_default_dtype(world):
    torch.set_default_dtype(torch.float64)


test_neighbour_after_default_dtype = neighbour


def test_gradient_mode(world):
    torch.set_grad_enabled(False)


test_neighbour_after_gradient_mode = neighbour


def test_alarm(world):
    signal.alarm(3600)


test_neighbour_after_alarm = neighbour


def test_closed_output(world):
    os.close(1)


test_neighbour_after_closed_output = neighbour


@pytest.fixture
def environment(monkeypatch, tmp_path):
    monkeypatch.setenv("OMP_NUM_THREADS", "7")
    monkeypatch.chdir(tmp_path)


def test_what_is_put_back(world, environment, capfd):
    neighbour(world)
    os.write(1, b"captured")
    assert capfd.readouterr().out == "captured"
    with torch.no_grad():
        torch.ones(1)

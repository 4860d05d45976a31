"""One process at a time sets up Bazel, whatever happens to it."""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import sys

import pytest

_HOLD = """
import subprocess, sys
from pathlib import Path
from tools.entry.lock import held, only_one
with only_one(Path(sys.argv[1]), "the test"):
    if sys.argv[2:]:
        subprocess.Popen(["cat"], pass_fds=held(), stdout=subprocess.DEVNULL)
    print("holds", flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def start(tmp_path):
    """Starts a process that holds the lock until its stdin ends; with a word more, so does a child of it."""
    started = []

    def start(*words: str) -> subprocess.Popen[str]:
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
        command = [sys.executable, "-S", "-c", _HOLD, str(tmp_path / "lock"), *words]
        pipe = subprocess.PIPE
        process = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True, env=environment)
        started.append(process)
        return process

    yield start
    for process in started:
        with process:
            process.kill()


def test_the_second_waits_and_says_for_whom(start):
    """It names the holder, and goes on as soon as that one is through."""
    first = start()
    assert first.stdout.readline() == "holds\n"
    second = start()
    assert f"waiting for process {first.pid}" in second.stderr.readline()
    first.stdin.close()
    assert second.stdout.readline() == "holds\n"


def test_a_killed_holder_does_not_wedge_the_others(start):
    """The kernel drops the lock of a dead process."""
    first = start()
    assert first.stdout.readline() == "holds\n"
    second = start()
    second.stderr.readline()
    first.send_signal(signal.SIGKILL)
    assert second.stdout.readline() == "holds\n"


def test_a_killed_holders_child_is_waited_for(start, tmp_path):
    """An orphaned download or unpacking must not run beside the next set-up."""
    first = start("child")
    assert first.stdout.readline() == "holds\n"
    first.send_signal(signal.SIGKILL)
    first.wait()
    with open(tmp_path / "lock") as file, pytest.raises(BlockingIOError):
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    second = start()
    second.stderr.readline()
    # The child reads the same pipe as its parent did: with the end of that it ends, and the lock with it.
    first.stdin.close()
    assert second.stdout.readline() == "holds\n"

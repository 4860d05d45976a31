"""The bench's launches, on real processes: limits hold, and nothing is left behind."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from hyper_parallel_tests.harness import processes
from tools.bench import launches
from tools.bench.launches import LaunchError

_SLEEP = "import time; time.sleep(600)"
_GRANDCHILD = f"import subprocess, sys; print(subprocess.Popen([sys.executable, '-c', {_SLEEP!r}]).pid, flush=True)"


def _run(program: str, folder: Path, limit_s: float = 60.0) -> launches.Launch:
    environment = launches.environment(folder, folder / "record", ranks=2, cases=1)
    return launches.run([sys.executable, "-c", program], folder, environment, folder / "output", limit_s)


def test_times_and_processor_seconds_are_of_the_process(tmp_path: Path) -> None:
    """A process that computes for a while takes at least that long, in processor time too."""
    launch = _run("import time\nwhile time.process_time() < 0.2: pass", tmp_path)
    assert launch.ended - launch.started >= 0.2
    assert launch.cpu_s >= 0.2


def test_all_contenders_see_the_same_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither a thread count nor Bazel's variables leak in from the caller."""
    monkeypatch.setenv("OMP_NUM_THREADS", "7")
    monkeypatch.setenv("TEST_TOTAL_SHARDS", "3")
    environment = launches.environment(tmp_path, tmp_path / "record", ranks=2, cases=1)
    assert environment["OMP_NUM_THREADS"] == "1"
    assert "TEST_TOTAL_SHARDS" not in environment
    assert environment["PYTHONPATH"].split(os.pathsep)[0] == str(tmp_path)


def test_a_launch_over_its_limit_is_ended_with_its_stacks(tmp_path: Path) -> None:
    """The error says where the first process stood."""
    with pytest.raises(LaunchError, match="did not end within 1 s") as caught:
        _run(f"def waits_here():\n    {_SLEEP}\nwaits_here()", tmp_path, limit_s=1.0)
    assert "in waits_here" in str(caught.value)


def test_a_failed_launch_says_what_it_printed(tmp_path: Path) -> None:
    """Exit code and output are in the error."""
    with pytest.raises(LaunchError, match="(?s)exited with code 3.*no such thing"):
        _run("import sys; print('no such thing'); sys.exit(3)", tmp_path)


def test_orphans_are_found_and_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A launch that ends well and leaves a process running did not end well."""
    monkeypatch.setattr(launches, "_LINGER_S", 0.2)
    with pytest.raises(LaunchError, match="left behind"):
        _run(_GRANDCHILD, tmp_path)
    assert not processes.is_running(int((tmp_path / "output").read_text()))


def test_the_whole_tree_is_killed_at_the_limit(tmp_path: Path) -> None:
    """Ranks below a launcher that hangs do not outlive it."""
    with pytest.raises(LaunchError, match="did not end"):
        _run(f"{_GRANDCHILD}\n{_SLEEP}", tmp_path, limit_s=1.0)
    pid = int((tmp_path / "output").read_text().split()[0])
    assert not processes.is_running(pid)

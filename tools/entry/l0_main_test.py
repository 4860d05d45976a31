"""The hand-over: what Bazel gets, and what comes back from it."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys

import pytest

_ENTRY = "import sys; from tools.entry.main import main; sys.exit(main(sys.argv[1:]))"


@pytest.fixture
def call(tmp_path):
    """Runs the entry with a Bazel that is this shell script (None: no program at all)."""

    def call(script, *arguments):
        bazel = tmp_path / "bazel"
        bazel.write_text("no program" if script is None else f"#!/bin/sh\n{script}\n")
        bazel.chmod(0o755)
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "BAZEL": str(bazel)}
        command = [sys.executable, "-S", "-c", _ENTRY, *arguments]
        return subprocess.run(command, env=environment, capture_output=True, text=True)

    return call


_ARGUMENTS = ["run", "//a:b", "--", "//...:l0", "", "a b", "-x", "*", "\u00e9"]


def test_arguments_arrive_as_they_are(call):
    """Empty ones, blanks and all; nothing is printed."""
    done = call('for word in "$@"; do echo "<$word>"; done', *_ARGUMENTS)
    assert done.stdout.splitlines() == [f"<{word}>" for word in _ARGUMENTS]
    assert done.stderr == ""


def test_a_rewritten_call_is_shown(call):
    """On stderr, in a form that can be typed; stdout is Bazel's alone."""
    done = call('echo "$@"', "query", "deps(//...:l0)")
    assert done.stdout == 'query deps(attr(tags, "[\\[ ]l0[,\\]]", tests(//...)))\n'
    assert done.stderr.startswith("tools/bazel: runs bazel query 'deps(attr(")


@pytest.mark.parametrize("code", [0, 1, 3, 8, 37])
@pytest.mark.parametrize("pattern", ["//...", "//...:l0"])
def test_exit_codes_pass_through(call, code, pattern):
    """With and without a layer."""
    done = call(f"exit {code}", "test", pattern)
    assert done.returncode == code
    assert "no test" not in done.stderr


def test_no_matching_test_is_told(call):
    """Bazel's exit code 4, with a line that names the layer."""
    done = call("exit 4", "test", "//...:l3")
    assert done.returncode == 4
    assert done.stderr.splitlines()[-1].startswith("tools/bazel: no test of layer l3 matches")


@pytest.mark.parametrize("name", ["TERM", "KILL"])
@pytest.mark.parametrize("pattern", ["//...", "//...:l0"])
def test_a_signal_that_ends_bazel_ends_the_entry(call, pattern, name):
    """The caller's shell sees the same signal."""
    assert call(f"kill -{name} $$", "test", pattern).returncode == -getattr(signal, f"SIG{name}")


@pytest.mark.parametrize("name", ["TERM", "HUP"])
def test_a_signal_to_the_entry_reaches_bazel(tmp_path, name):
    """Bazel decides what to do with it, and its exit code is the entry's."""
    bazel = tmp_path / "bazel"
    bazel.write_text(f"#!/bin/sh\ntrap 'exit 8' {name}\necho ready\nread line\n")
    bazel.chmod(0o755)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "BAZEL": str(bazel)}
    command = [sys.executable, "-S", "-c", _ENTRY, "test", "//...:l0"]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, env=environment, stdin=pipe, stdout=pipe, stderr=pipe, text=True) as entry:
        assert entry.stdout.readline() == "ready\n"
        entry.send_signal(getattr(signal, f"SIG{name}"))
        assert entry.wait() == 8


@pytest.mark.parametrize("pattern", ["//...", "//...:l0"])
@pytest.mark.parametrize("ignored", ["INT", ""], ids=["ignored", "heard"])
def test_bazel_starts_with_the_callers_signals(tmp_path, pattern, ignored):
    """Under nohup and in the background a shell ignores some, and Bazel must go on ignoring them."""
    bazel = tmp_path / "bazel"
    bazel.write_text("#!/bin/sh\ngrep -E 'SigIgn|SigBlk' /proc/self/status\n")
    bazel.chmod(0o755)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "BAZEL": str(bazel)}
    trap = f"trap '' {ignored}; " if ignored else ""
    entry = shlex.join([sys.executable, "-S", "-c", _ENTRY, "test", pattern])

    def masks(command):
        done = subprocess.run(["sh", "-c", trap + command], env=environment, capture_output=True, text=True)
        return {line.split()[0]: int(line.split()[1], 16) for line in done.stdout.splitlines()}

    assert masks(entry) == masks(str(bazel))


def test_layers_that_one_call_cannot_combine_are_a_bad_command_line(call):
    """Bazel's exit code for that, and Bazel is not started."""
    done = call("echo started", "test", "//...:l0", "//b:c")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("tools/bazel: one call cannot run //...:l0 //b:c")


@pytest.mark.parametrize("pattern", ["//...", "//...:l0"])
def test_a_bazel_that_cannot_run_is_an_environment_error(call, pattern):
    """Bazel's exit code for that, in one line, without a traceback."""
    done = call(None, "test", pattern)
    assert done.returncode == 36
    assert "expected a Bazel to run at" in done.stderr.splitlines()[-1]

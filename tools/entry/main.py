"""The order of events: a word of our own (doctor), the rewriting, the choice of a Bazel, the hand-over."""

from __future__ import annotations

# What only some calls need is imported where it is used: every call of Bazel waits for these imports.
import os
import signal

from . import find, rewrite
from .report import EntryError, say

# Bazel's own exit codes for the same kinds of failure.
_BAD_COMMAND_LINE = 2
_NO_TESTS_FOUND = 4
_INTERRUPTED = 8
_LOCAL_ENVIRONMENT = 36

# While Bazel runs as a child: the terminal sends the first to both, and Bazel decides what they mean.
_SENT_TO_BOTH = (signal.SIGINT, signal.SIGQUIT)
_PASSED_ON = (signal.SIGTERM, signal.SIGHUP)
_SIGNALS = _SENT_TO_BOTH + _PASSED_ON


def main(arguments: list[str]) -> int:
    """Run Bazel with these arguments. Returns when Bazel cannot be started or had to be waited for."""
    if arguments[:1] == ["doctor"]:
        from . import doctor

        return doctor.run()
    try:
        rewritten = rewrite.rewrite(arguments)
    except EntryError as error:
        say(str(error))
        return _BAD_COMMAND_LINE
    try:
        bazel = find.bazel(os.environ)
    except (EntryError, OSError) as error:
        say(f"no Bazel to run: {error}")
        return _LOCAL_ENVIRONMENT
    except KeyboardInterrupt:
        say("interrupted; the next call goes on from here")
        return _INTERRUPTED
    if bazel.cannot_tell_version and arguments in (["version"], ["--version"]):
        print(f"bazel {bazel.version}" if arguments == ["--version"] else f"Build label: {bazel.version}")
        return 0
    return _hand_over(bazel, rewritten)


def _hand_over(bazel: find.Bazel, rewritten: rewrite.Rewritten) -> int:
    if rewritten.changed:
        import shlex

        say(f"runs bazel {shlex.join(rewritten.arguments)}")
    command = [*bazel.command, *rewritten.arguments]
    try:
        if rewritten.layers:
            return _wait_for(command, rewritten.layers)
        # Python ignores these, and a program keeps what it is started with.
        for number in (signal.SIGPIPE, signal.SIGXFSZ):
            signal.signal(number, signal.SIG_DFL)
        os.execv(command[0], command)
    except OSError as error:
        say(f"expected a Bazel to run at {command[0]} ({bazel.how}), found: {error.strerror}")
        return _LOCAL_ENVIRONMENT


def _wait_for(command: list[str], layers: tuple[str, ...]) -> int:
    """Run Bazel as a child, to say what exit code 4 means here. Signals reach Bazel, its end becomes ours."""
    import subprocess

    # Held back until there is a process, which must start with the signals as this one got them.
    signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
    process = subprocess.Popen(command, preexec_fn=_prepare_child)
    for number in _PASSED_ON:
        signal.signal(number, lambda received, _: process.send_signal(received))
    for number in _SENT_TO_BOTH:
        signal.signal(number, lambda *_: None)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)
    code = process.wait()
    if code == _NO_TESTS_FOUND:
        say(f"no test of layer {' or '.join(layers)} matches the patterns and filters (exit code {code})")
    if code < 0:
        for number in _SIGNALS:
            signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    return code


def _prepare_child() -> None:
    """Take the signals again; if this process is killed, the kernel sends one: no build goes on alone."""
    import ctypes

    signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)
    pr_set_pdeathsig = 1
    ctypes.CDLL(None).prctl(pr_set_pdeathsig, signal.SIGTERM)

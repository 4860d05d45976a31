"""Tells the words of a Bazel command line apart: startup flags, command, flags and their values, targets."""

from __future__ import annotations

import functools
import re
from pathlib import Path

_STARTUP_FLAGS_WITH_VALUE = (
    "bazelrc", "connect_timeout_secs", "digest_function", "failure_detail_out", "host_jvm_args",
    "host_jvm_profile", "install_base", "io_nice_level", "local_startup_timeout_secs", "macos_qos_class",
    "max_idle_secs", "output_base", "output_user_root", "server_javabase", "server_jvm_out",
)  # fmt: skip
_SHORT_FLAGS_WITH_VALUE = ("-c", "-j")


class CommandLine:
    """The words of a call of Bazel and what they are.

    `command`: Bazel's command, "" when there is none. `targets`: the indices of the words that are target
    patterns (or parts of a query). `values`: for each flag that has one, the index of the word that holds its
    last value (`--flag=value`, or the word after `--flag`). `end_of_flags`: where further flags can go.
    """

    def __init__(self, words: list[str]) -> None:
        self.words = words
        self.command = ""
        self.targets: list[int] = []
        self.values: dict[str, int] = {}
        self.end_of_flags = len(words)


def parse(words: list[str]) -> CommandLine:
    """Sort the words of a call."""
    line = CommandLine(words)
    index = _command_index(words)
    if index < len(words):
        line.command = words[index]
    index += 1
    while index < len(words):
        word = words[index]
        if word == "--":
            line.end_of_flags = index
            line.targets += range(index + 1, len(words))
            break
        if not word.startswith("-"):
            line.targets.append(index)
        elif "=" in word:
            line.values[word.partition("=")[0]] = index
        elif _takes_next_word(word) and index + 1 < len(words):
            index += 1
            line.values[word] = index
        index += 1
    return line


def _command_index(words: list[str]) -> int:
    index = 0
    while index < len(words) and words[index].startswith("-"):
        index += 2 if words[index][2:] in _STARTUP_FLAGS_WITH_VALUE else 1
    return index


def _takes_next_word(flag: str) -> bool:
    """Whether the word after this flag is its value."""
    if not flag.startswith("--"):
        return flag in _SHORT_FLAGS_WITH_VALUE
    name = flag[2:]
    if "//" in name:
        # A flag of Starlark (--//tools/rules:flag) takes its value after "=" only.
        return False
    return not {name, re.sub("^no", "", name)} & _flags_without_value()


@functools.cache
def _flags_without_value() -> frozenset[str]:
    lines = Path(__file__).with_name("flags_without_value.txt").read_text().splitlines()
    return frozenset(line for line in lines if not line.startswith("#"))

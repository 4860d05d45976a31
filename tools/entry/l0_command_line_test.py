"""Which word of a command line is what."""

from __future__ import annotations

import pytest

from tools.entry.command_line import parse


@pytest.mark.parametrize(
    ("call", "command"),
    [
        ("test //a", "test"),
        ("--batch test //a", "test"),
        ("--output_base build test //a", "test"),
        ("--output_base=build test //a", "test"),
        ("--bazelrc rc --nohome_rc query //a", "query"),
        ("--version", ""),
        ("", ""),
    ],
)
def test_the_command_comes_after_the_startup_flags(call, command):
    """A startup flag's value in a word of its own is not the command."""
    assert parse(call.split()).command == command


@pytest.mark.parametrize(
    ("call", "targets"),
    [
        ("test //a //b", "//a //b"),
        ("test --test_arg x //a", "//a"),
        ("test --test_arg=x //a", "//a"),
        ("test --keep_going //a --nokeep_going //b", "//a //b"),
        ("test --cache_test_results //a", "//a"),
        ("test -k //a -c opt //b -j 8", "//a //b"),
        ("test --//rules:flag //a --no//rules:flag //b", "//a //b"),
        ("test --flag_of_a_later_bazel //a //b", "//b"),
        ("test //a -- //b -//c --test_arg", "//a //b -//c --test_arg"),
        ("test --test_arg", ""),
    ],
)
def test_targets_are_what_is_neither_flag_nor_value(call, targets):
    """An unknown flag is taken to have a value: its next word is then left alone."""
    line = parse(call.split())
    assert [line.words[index] for index in line.targets] == targets.split()


def test_the_last_value_of_a_flag_is_found_in_both_forms():
    """And further flags go before the double dash."""
    line = parse(["test", "--jobs=2", "--jobs", "4", "//a", "--", "//b", "--jobs=8"])
    assert line.words[line.values["--jobs"]] == "4"
    assert line.words[line.end_of_flags] == "--"

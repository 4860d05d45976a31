"""Cases that write too much, or what no report can hold as it is, a healthy one after each."""

from __future__ import annotations

import os

import pytest

from hyper_parallel_tests.harness.tests.programs.neighbour import neighbour

MIB = 2**20


def test_flood(world):
    print("the first line")
    for _ in range(100):
        os.write(1, b"x" * (MIB - 1) + b"\n")
    print("the last line")
    pytest.fail("after 100 MiB")


test_neighbour_after_flood = neighbour


def test_flood_of_a_passing_case(world):
    for _ in range(100):
        os.write(1, b"y" * (MIB - 1) + b"\n")


def test_unicode(world):
    print("grüße, 世界, \N{SNOWMAN}")
    pytest.fail("größer als 世界")


test_neighbour_after_unicode = neighbour


def test_binary(world):
    os.write(2, bytes(range(256)))
    pytest.fail("\x00\x1b[31mred\x1b[0m \ud800 <&>\"'")


test_neighbour_after_binary = neighbour


def test_long_assertion(world):
    assert "a" * 2 * MIB == "b" * 2 * MIB


test_neighbour_after_long_assertion = neighbour


def test_long_message(world):
    raise ValueError("z" * 2 * MIB)


test_neighbour_after_long_message = neighbour


def test_output_without_end_of_line(world):
    print("no end of line", end="")
    pytest.fail("look at the output")


test_neighbour_after_output_without_end_of_line = neighbour


def test_output_of_a_child(world):
    assert os.system("echo a child speaks") == 0
    pytest.fail("look at the child's output")

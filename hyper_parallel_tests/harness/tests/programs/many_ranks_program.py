"""Cases on any number of ranks, of which one fails alone, a healthy one after each."""

from __future__ import annotations

import os

import pytest

from hyper_parallel_tests.harness.tests.programs.neighbour import neighbour

test_neighbour_at_the_start = neighbour


@pytest.fixture
def broken_on_rank_2(world):
    if world.rank == 2:
        raise ValueError("no data on rank 2")


def test_error_in_the_fixture_of_rank_2(world, broken_on_rank_2):
    pass


test_neighbour_after_fixture = neighbour


def test_death_of_the_last_rank(world):
    neighbour(world)
    if world.rank == world.size - 1:
        os.abort()
    neighbour(world)


test_neighbour_at_the_end = neighbour

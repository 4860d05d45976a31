"""Cases that use further processes and put them away."""

from __future__ import annotations

import multiprocessing

import torch

from hyper_parallel_tests.harness.tests.programs.neighbour import neighbour


def square(number: int) -> int:
    return number * number


def test_pool_of_a_fork_server(world):
    with multiprocessing.get_context("forkserver").Pool(1) as pool:
        assert pool.map(square, [1, 2]) == [1, 4]


def test_data_loader(world):
    assert multiprocessing.get_start_method() == "fork"
    loader = torch.utils.data.DataLoader(range(8), batch_size=2, num_workers=2)
    assert [batch.tolist() for batch in loader] == [[0, 1], [2, 3], [4, 5], [6, 7]]


test_neighbour_after_children = neighbour

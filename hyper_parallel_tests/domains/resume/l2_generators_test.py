"""Who draws the same random numbers: ranks with the same rows, at the start and behind a restart on any mesh."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from hyper_parallel_tests.domains.resume.runs import PLAIN, begun, made
from hyper_parallel_tests.harness import contract

# Of two ranks: whether both read the same rows.
SAME = {"fsdp": False, "tp": True}

each_way = pytest.mark.parametrize(
    ("before", "after"), [("fsdp", "tp"), ("tp", "fsdp"), ("fsdp", "fsdp"), ("tp", "tp")]
)


def drawn(world: Any) -> list[tuple[float, ...]]:
    """The next numbers of PyTorch's, Python's and NumPy's generators, a tuple a rank."""
    mine = torch.tensor([torch.rand(()).item(), random.random(), np.random.random()], device=world.device)
    found: list[Tensor] = [torch.zeros_like(mine) for _ in range(world.size)]
    dist.all_gather(found, mine)
    return [tuple(one.tolist()) for one in found]


def numbers(drawn: list[tuple[float, ...]]) -> set[float]:
    return {one for of_rank in drawn for one in of_rank}


def assert_drawn_alike(found: list[tuple[float, ...]], same: bool) -> None:
    first, second = found
    for one, other in zip(first, second, strict=True):
        assert (one == other) == same, f"the ranks read {'the same' if same else 'other'} rows, and draw {found}"


@contract("RS-2-01")
@pytest.mark.parametrize("layout", SAME)
def test_a_run_that_starts(engine, world, layout):
    """Ranks that divide a layer draw the same numbers, ranks with rows of their own others; each seed has its own."""
    begun(world, PLAIN, layout, micro_batches=1)
    first = drawn(world)
    assert_drawn_alike(first, SAME[layout])
    begun(world, PLAIN.also("--training.seed=5"), layout, micro_batches=1)
    assert numbers(drawn(world)).isdisjoint(numbers(first))


@contract("RS-2-01")
@each_way
def test_a_restart(engine, world, artifacts, before, after):
    """So it is behind a restart, be it on another mesh of as many ranks; there nobody draws a run's first numbers."""
    trainer = begun(world, PLAIN, before, steps=1)
    trainer.save_checkpoint(artifacts / "checkpoint")
    left = drawn(world)
    made(world, PLAIN, after, stranger=True).train(micro_batches=1)
    first = drawn(world)
    made(world, PLAIN, after, stranger=True).load_checkpoint(artifacts / "checkpoint")
    found = drawn(world)
    assert_drawn_alike(found, SAME[after])
    assert found == left if before == after else numbers(found).isdisjoint(numbers(first))

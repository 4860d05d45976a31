"""Cases that ask the engine for what it does not offer."""

from __future__ import annotations

import torch.distributed as dist

from hyper_parallel_tests.engines import EngineUnsupported
from hyper_parallel_tests.harness.tests.programs.neighbour import neighbour


def test_not_offered(world):
    raise EngineUnsupported("demo", "ring", "only Ulysses is there")


def test_not_offered_on_one_rank(world):
    if world.rank == 1:
        raise EngineUnsupported("demo", "ring", "only Ulysses is there")
    dist.barrier()


test_neighbour_after_not_offered = neighbour

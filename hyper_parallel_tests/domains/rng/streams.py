"""What cases draw, and what a single card draws for the same seed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from hyper_parallel_tests.harness import World

SEED = 1234


@contextmanager
def untouched_generators() -> Iterator[None]:
    """Context after which the default generators are as they were, so that cases do not see each other's draws."""
    with torch.random.fork_rng():
        yield


def single_card(world: World, draw: Any, *arguments: Any, seed: int = SEED, **options: Any) -> Tensor:
    """What a card that is alone draws first for a seed."""
    with untouched_generators():
        torch.manual_seed(seed)
        return draw(*arguments, device=world.device, **options)


def draw(world: World, count: int = 5) -> Tensor:
    """The next numbers of the default stream."""
    return torch.rand(count, device=world.device)

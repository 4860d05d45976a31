"""A decoder whose blocks are sharded, and recomputed in backward, all or some of them; how it trains."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import replace
from typing import Any

import pytest
from torch import Tensor, nn

from hyper_parallel_tests.harness import World, mean_over_ranks, train, train_baseline
from hyper_parallel_tests.harness.judging.parity import Track
from hyper_parallel_tests.interactions import decoders
from hyper_parallel_tests.models.decoder import Decoder, decoder
from hyper_parallel_tests.models.seeding import Batch

SHAPE = replace(decoders.SHAPE, layers=4)
ALL = range(SHAPE.layers)

# What a user wraps first is inside.
ORDERS = ("region_around_unit", "unit_around_region")
each_order = pytest.mark.parametrize("order", ORDERS)

Params = Callable[[], Iterable[tuple[str, Tensor]]]


def whole(world: World) -> Decoder:
    """The decoder on one card."""
    return decoder(SHAPE).to(world.device)


def mine(world: World) -> list[Batch]:
    """This rank's rows of each step."""
    return [one.part(world.rank, world.size) for one in decoders.batches(world)]


def sharded(
    engine: Any,
    world: World,
    mesh: Any,
    order: str,
    regions: Collection[int] = ALL,
    around: Callable[[nn.Module], nn.Module] | None = None,
    **options: Any,
) -> tuple[Decoder, Params]:
    """The decoder with each block a unit and some blocks regions, and its parameters by the names of the whole.

    Args:
        order: one of `ORDERS`.
        regions: numbers of the blocks that are recomputed.
        around: wraps each region once more.
        options: of the regions.
    """
    model = whole(world)
    names = [name for name, _ in model.named_parameters()]

    def region(block: nn.Module) -> nn.Module:
        wrapped = engine.checkpoint_wrapper(block, **options)
        return wrapped if around is None else around(wrapped)

    def unit(block: nn.Module) -> nn.Module:
        return engine.fully_shard(block, mesh=mesh)

    for place, block in enumerate(list(model.blocks)):
        if place not in regions:
            model.blocks[place] = unit(block)
        else:
            model.blocks[place] = region(unit(block)) if order == "region_around_unit" else unit(region(block))
    engine.fully_shard(model, mesh=mesh)
    params = list(zip(names, model.parameters(), strict=True))
    return model, lambda: params


def trained(world: World, model: nn.Module, params: Params) -> Track:
    """Three steps of the sharded decoder."""
    update = decoders.optimizer([param for _, param in params()])
    return train(model, mine(world), decoders.loss, optimizer=update, average=mean_over_ranks, params=params)


def baseline(world: World) -> Track:
    """Three steps of the decoder on one card."""
    return train_baseline(whole(world), decoders.batches(world), decoders.loss, optimizer=decoders.optimizer)

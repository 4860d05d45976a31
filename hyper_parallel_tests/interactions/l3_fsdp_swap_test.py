"""Sharded blocks in regions whose inputs wait in host memory: they come back before the blocks run again."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from hyper_parallel_tests.harness import World, assert_equal, assert_parity, contract, trace
from hyper_parallel_tests.interactions.decoders import ROWS, loss, optimizer
from hyper_parallel_tests.interactions.life_cycle import assert_closed
from hyper_parallel_tests.interactions.regions import (
    ALL,
    SHAPE,
    Params,
    baseline,
    each_order,
    mine,
    sharded,
    trained,
)
from hyper_parallel_tests.interactions.scenario import scenario
from hyper_parallel_tests.models.decoder import Block, Decoder

HERE = scenario("FSDP-L2-06")


def swapped(engine: Any, world: World, order: str) -> tuple[Decoder, Params]:
    """Each block sharded, in a region, and the region swapped."""
    model, params = sharded(engine, world, HERE.mesh(world), order, around=engine.swap_wrapper)
    for first, second in zip(model.blocks, model.blocks[1:], strict=False):
        engine.SwapManager().set_forward_prefetch_layer(first, second)
    return model, params


@contract("FSDP-L2-06")
@each_order
def test_trains_as_a_single_card_does(engine, world, ledger, order):
    """Loss, norm, gradients and parameters of three steps are the single card's."""
    model, params = swapped(engine, world, order)
    assert_parity(trained(world, model, params), baseline(world), ledger["ac_swap_fsdp_fp32"])


@contract("FSDP-L2-06")
@each_order
def test_blocks_run_again_on_what_came_back(engine, world, order):
    """Each block's input but the last one's goes to the host and comes back to the device with its bits."""
    model, _ = swapped(engine, world, order)
    blocks = [next(part for part in outer.modules() if isinstance(part, Block)) for outer in model.blocks]
    seen: list[list[Tensor]] = [[] for _ in blocks]
    for place, block in enumerate(blocks):
        block.register_forward_pre_hook(noting(seen[place]))
    size = trace.size_of(ROWS // world.size, SHAPE.seq, SHAPE.hidden)
    for rows in mine(world):
        with engine.watch_swap_copies() as copies:
            loss(model, rows).backward()
        moved = [direction for direction, each in copies if each >= size]
        assert moved == ["offload"] * (len(ALL) - 1) + ["load"] * (len(ALL) - 1)
        for inputs in seen:
            assert [one.device for one in inputs] == [world.device] * 2
            assert_equal(inputs[1], inputs[0], what="a block's input when it runs again")
            inputs.clear()


def noting(inputs: list[Tensor]) -> Callable[[torch.nn.Module, tuple[Any, ...]], None]:
    return lambda _, given: inputs.append(given[0].detach().clone())


@contract("FSDP-L2-06")
@each_order
def test_life_cycle_is_closed(engine, world, order):
    """After a step no parameter is gathered, nothing waits in host memory, no hook is left and nothing has grown."""
    model, params = swapped(engine, world, order)
    update, (rows, *_) = optimizer([param for _, param in params()]), mine(world)
    assert_closed(lambda: loss(model, rows).backward(), update, model)

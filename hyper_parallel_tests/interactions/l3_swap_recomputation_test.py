"""Recomputed regions whose inputs wait in host memory: how long what backward needs lies where."""

from __future__ import annotations

from typing import Any

import pytest
from torch import nn

from hyper_parallel_tests.harness import World, assert_parity, contract, trace, train, train_baseline
from hyper_parallel_tests.interactions.decoders import ROWS, batches, loss, optimizer
from hyper_parallel_tests.interactions.life_cycle import assert_closed
from hyper_parallel_tests.interactions.regions import ALL, SHAPE, whole
from hyper_parallel_tests.models.decoder import Decoder
from hyper_parallel_tests.models.seeding import Batch

# Which blocks are recomputed; all are swapped.
REGIONS = {"all": ALL, "every_second": ALL[1::2]}
# What one block hands to the next.
STREAM = trace.size_of(ROWS, SHAPE.seq, SHAPE.hidden)

each_choice = pytest.mark.parametrize("regions", REGIONS.values(), ids=REGIONS)
each_kind = pytest.mark.parametrize("reentrant", [False, True], ids=["saved_tensors", "reentrant"])


def with_regions(engine: Any, world: World, regions: Any, reentrant: bool, *, swap: bool = True) -> Decoder:
    """The decoder with some blocks as regions, and each block swapped, regions from outside."""
    model = whole(world)
    for place, block in enumerate(list(model.blocks)):
        inner = engine.checkpoint_wrapper(block, use_reentrant=reentrant) if place in regions else block
        model.blocks[place] = engine.swap_wrapper(inner) if swap else inner
    if swap:
        for first, second in zip(model.blocks, model.blocks[1:], strict=False):
            engine.SwapManager().set_forward_prefetch_layer(first, second)
    return model


@contract("IX-09")
@each_choice
@each_kind
def test_trains_as_without_both(engine, world, ledger, regions, reentrant):
    """Loss, norm, gradients and parameters of three steps are, bit by bit, those without swap and regions."""
    model, names = with_regions(engine, world, regions, reentrant), dict(whole(world).named_parameters())
    params = dict(zip(names, model.parameters(), strict=True))
    candidate = train(model, batches(world), loss, optimizer=optimizer, params=params.items)
    baseline = train_baseline(whole(world), batches(world), loss, optimizer=optimizer)
    assert_parity(candidate, baseline, ledger["exact"])


def held_by(model: nn.Module, world: World, rows: Batch) -> list[int]:
    """Bytes on the device after forward, and when each block's backward begins, the last block's first."""
    # The gradients are there before, so that they do not count.
    loss(model, rows).backward()
    held: list[int] = []
    handles = [block.register_full_backward_pre_hook(lambda *_: held.append(made.held())) for block in model.blocks]
    with trace.made(world.device) as made:
        value = loss(model, rows)
        held.append(made.held())
        value.backward()
    for handle in handles:
        handle.remove()
    return held


@contract("IX-09")
@each_kind
def test_inputs_are_there_when_they_are_needed(engine, world, reentrant):
    """A region's input leaves the device in forward, and is back for its own backward and that of the block behind."""
    (rows, *_) = batches(world)
    plain = held_by(with_regions(engine, world, ALL, reentrant, swap=False), world, rows)
    with engine.watch_swap_copies():
        swapped = held_by(with_regions(engine, world, ALL, reentrant), world, rows)
    # The last input is needed at once and stays. Then come those of the blocks before the next one in backward.
    last = len(ALL) - 1
    away = [last, *(max(place - 1, 0) for place in reversed(ALL))]
    assert [before - now for before, now in zip(plain, swapped, strict=True)] == [STREAM * each for each in away]


@contract("IX-09")
@each_kind
def test_second_forward_moves_nothing(engine, world, reentrant):
    """In each step every input but the last goes to the host once and comes back once, all after forward is over."""
    model = with_regions(engine, world, ALL, reentrant)
    moves = (["offload"] * (len(ALL) - 1), ["load"] * (len(ALL) - 1))
    for rows in batches(world):
        with engine.watch_swap_copies() as away:
            value = loss(model, rows)
        with engine.watch_swap_copies() as back:
            value.backward()
        assert tuple([move for move, size in copies if size >= STREAM] for copies in (away, back)) == moves


@contract("IX-09")
@each_choice
@each_kind
def test_life_cycle_is_closed(engine, world, regions, reentrant):
    """After a step nothing that was saved is on the device or the host, no hook is left and nothing has grown."""
    model, (rows, *_) = with_regions(engine, world, regions, reentrant), batches(world)
    assert_closed(lambda: loss(model, rows).backward(), optimizer(model.parameters()), model)

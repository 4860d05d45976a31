"""Swapped layers in the stages of a pipeline."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

from hyper_parallel_tests.harness import World, assert_parity, contract, trace, train_baseline
from hyper_parallel_tests.interactions.life_cycle import assert_closed
from hyper_parallel_tests.interactions.micro_batches import (
    NotedPipeline,
    batches,
    each_schedule,
    layers_of,
    loss,
    named,
    sgd,
    whole,
)
from hyper_parallel_tests.interactions.scenario import scenario

HERE = scenario("IX-15")


def pipeline(engine: Any, world: World, schedule: str, *, swap: bool = True) -> NotedPipeline:
    """Each layer of a stage a group, or none swapped; parameters by the names that they have without."""
    modules = layers_of(world, schedule)
    params = named(modules)
    for module in modules.values() if swap else ():
        for place, layer in module.layers.items():
            module.layers[place] = engine.swap_wrapper(layer)
        for first, second in pairwise(module.layers.values()):
            engine.SwapManager().set_forward_prefetch_layer(first, second)
    return NotedPipeline(engine, world, schedule, modules, HERE.mesh(world), params)


@contract("IX-15")
def test_micro_batches_wait_in_host_memory(engine, world):
    """When a stage's backward begins, what all micro-batches have saved is away: so much less is on the device."""
    held, moved = {}, 0
    for swap in (True, False):
        piped, (first, second, *_) = pipeline(engine, world, "gpipe", swap=swap), batches(world)
        piped.run(first)
        at_backward: list[int] = []
        (stage,) = piped.modules.values()
        stage.register_full_backward_pre_hook(lambda *_, seen=at_backward: seen.append(made.held()))
        with engine.watch_swap_copies() as copies, trace.made(world.device) as made:
            piped.run(second)
        held[swap], moved = at_backward[0], moved + sum(size for way, size in copies if way == "offload")
    # A pipeline has to keep what its stages were given, of which some is what moved.
    assert held[False] - held[True] >= moved / 2 > 0


@contract("IX-15")
@each_schedule
def test_trains_as_a_single_card_does(engine, world, ledger, schedule):
    """Loss, norm, gradients and parameters of three steps are the single card's."""
    piped = pipeline(engine, world, schedule)
    baseline = train_baseline(whole(world), batches(world), loss, optimizer=sgd)
    assert_parity(piped.train(batches(world), optimizer=sgd), baseline.only(piped.params), ledger["pp_fsdp_fp32"])


@contract("IX-15")
@each_schedule
def test_swap_changes_no_bit(engine, world, ledger, schedule):
    """With swap the run is, bit by bit, that of the same stages without."""
    swapped, kept = (
        pipeline(engine, world, schedule, swap=one).train(batches(world), optimizer=sgd) for one in (True, False)
    )
    assert_parity(swapped, kept, ledger["exact"], own_because="the same engine with and without swap")


@contract("IX-15")
@each_schedule
def test_order(engine, world, schedule):
    """Micro-batches come forward and back in the plan's order, each from what the neighbour gave for it."""
    piped = pipeline(engine, world, schedule)
    # Stages may have a pass of their own at the first run, by which they learn shapes.
    first, second, *_ = batches(world)
    piped.run(first)
    with piped.noted() as notes:
        piped.run(second)
    assert notes.order == piped.plan
    notes.assert_passed_on(piped.group)


@contract("IX-15")
@each_schedule
def test_each_step_moves_as_much(engine, world, schedule):
    """Some of what a step saves goes to the host and comes back, in each step as many bytes."""
    piped, (first, *others) = pipeline(engine, world, schedule), batches(world)
    piped.run(first)
    moved = []
    for batch in others:
        with engine.watch_swap_copies() as copies:
            piped.run(batch)
        moved.append({way: sum(size for one, size in copies if one == way) for way in ("offload", "load")})
    assert moved[0] == moved[1]
    assert all(moved[0].values())


@contract("IX-15")
@each_schedule
def test_life_cycle_is_closed(engine, world, schedule):
    """After a step no copy and no message is under way, no hook is left and nothing has grown."""
    piped = pipeline(engine, world, schedule)
    batch = batches(world)[0]
    assert_closed(lambda: piped.run(batch), sgd(piped.model.parameters()), piped.model)

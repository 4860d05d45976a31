"""Sharded blocks in regions that are not reentrant: they run again when backward asks for the first saved tensor."""

from __future__ import annotations

from hyper_parallel_tests.harness import assert_parity, contract, trace
from hyper_parallel_tests.interactions.decoders import loss, optimizer
from hyper_parallel_tests.interactions.life_cycle import assert_closed
from hyper_parallel_tests.interactions.regions import ALL, baseline, each_order, mine, sharded, trained
from hyper_parallel_tests.interactions.scenario import scenario

HERE = scenario("FSDP-L2-04")


@contract("FSDP-L2-04")
@each_order
def test_needs_less_memory(engine, world, order):
    """The most bytes that a step holds at once are fewer than without regions, by two blocks' activations at least."""
    most, saved = {}, {}
    for regions in (ALL, ()):
        model, _ = sharded(engine, world, HERE.mesh(world), order, regions, use_reentrant=False)
        first, second, *_ = mine(world)
        # The first step makes the gradients, so that they do not count.
        loss(model, first).backward()
        with trace.made(world.device) as made:
            value = loss(model, second)
            saved[regions] = made.held()
            value.backward()
        most[regions] = made.most
    dropped = saved[()] - saved[ALL]
    # One block is there again when it has run again, and its gradients beside it.
    assert most[()] - most[ALL] >= dropped / 2 > 0


@contract("FSDP-L2-04")
@each_order
def test_trains_as_a_single_card_does(engine, world, ledger, order):
    """Loss, norm, gradients and parameters of three steps are the single card's."""
    model, params = sharded(engine, world, HERE.mesh(world), order, use_reentrant=False)
    assert_parity(trained(world, model, params), baseline(world), ledger["ac_fsdp_fp32"])


@contract("FSDP-L2-04")
@each_order
def test_life_cycle_is_closed(engine, world, order):
    """After a step no parameter is gathered, no hook is left and nothing has grown."""
    model, params = sharded(engine, world, HERE.mesh(world), order, use_reentrant=False)
    update, (rows, *_) = optimizer([param for _, param in params()]), mine(world)
    assert_closed(lambda: loss(model, rows).backward(), update, model)

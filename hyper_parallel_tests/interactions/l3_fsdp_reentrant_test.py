"""Sharded blocks in reentrant regions: forward runs without a graph, and backward runs a backward of its own inside."""

from __future__ import annotations

from hyper_parallel_tests.harness import assert_parity, contract
from hyper_parallel_tests.interactions.decoders import loss, optimizer
from hyper_parallel_tests.interactions.life_cycle import assert_closed
from hyper_parallel_tests.interactions.regions import baseline, each_order, mine, sharded, trained
from hyper_parallel_tests.interactions.scenario import scenario

HERE = scenario("FSDP-L2-03")


@contract("FSDP-L2-03")
@each_order
def test_trains_as_a_single_card_does(engine, world, ledger, order):
    """Loss, norm, gradients and parameters of three steps are the single card's."""
    model, params = sharded(engine, world, HERE.mesh(world), order, use_reentrant=True)
    assert_parity(trained(world, model, params), baseline(world), ledger["ac_fsdp_fp32"])


@contract("FSDP-L2-03")
@each_order
def test_life_cycle_is_closed(engine, world, order):
    """After a step no parameter is gathered, no hook is left and nothing has grown."""
    model, params = sharded(engine, world, HERE.mesh(world), order, use_reentrant=True)
    update, (rows, *_) = optimizer([param for _, param in params()]), mine(world)
    assert_closed(lambda: loss(model, rows).backward(), update, model)

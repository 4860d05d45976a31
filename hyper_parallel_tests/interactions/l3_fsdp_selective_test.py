"""Sharded blocks of which every second one is a region."""

from __future__ import annotations

from collections import Counter
from contextlib import ExitStack

from hyper_parallel_tests.harness import assert_parity, contract, trace
from hyper_parallel_tests.interactions.decoders import loss, optimizer
from hyper_parallel_tests.interactions.life_cycle import assert_closed
from hyper_parallel_tests.interactions.regions import ALL, baseline, each_order, mine, sharded, trained
from hyper_parallel_tests.interactions.scenario import scenario
from hyper_parallel_tests.models.decoder import Block

HERE = scenario("FSDP-L2-05")
CHOSEN = ALL[1::2]


@contract("FSDP-L2-05")
@each_order
def test_chosen_blocks_run_twice(engine, world, order):
    """In each step forward hooks of a chosen block and all in it run twice, those of the others once."""
    # The second run may end early, and then does not come to the end of the block.
    model, _ = sharded(engine, world, HERE.mesh(world), order, CHOSEN, early_stop=False)
    blocks = [next(part for part in outer.modules() if isinstance(part, Block)) for outer in model.blocks]
    for rows in mine(world):
        with ExitStack() as watched:
            events = [watched.enter_context(trace.hooks(block)) for block in blocks]
            loss(model, rows).backward()
        runs = [Counter(one.only("forward")) for one in events]
        parts = ["root", *(name for name, _ in blocks[0].named_modules() if name)]
        assert runs == [{f"forward {part}": 2 if place in CHOSEN else 1 for part in parts} for place in ALL]


@contract("FSDP-L2-05")
@each_order
def test_trains_as_a_single_card_does(engine, world, ledger, order):
    """Loss, norm, gradients and parameters of three steps are the single card's."""
    model, params = sharded(engine, world, HERE.mesh(world), order, CHOSEN)
    assert_parity(trained(world, model, params), baseline(world), ledger["ac_fsdp_fp32"])


@contract("FSDP-L2-05")
@each_order
def test_life_cycle_is_closed(engine, world, order):
    """After a step no parameter is gathered, no hook is left and nothing has grown."""
    model, params = sharded(engine, world, HERE.mesh(world), order, CHOSEN)
    update, (rows, *_) = optimizer([param for _, param in params()]), mine(world)
    assert_closed(lambda: loss(model, rows).backward(), update, model)

"""Training of a network over layouts of four ranks, against a single card."""

from __future__ import annotations

import pytest

from hyper_parallel_tests.domains.optimizer.layouts import ON_FOUR
from hyper_parallel_tests.domains.optimizer.moving import assert_goes_on
from hyper_parallel_tests.domains.optimizer.network import ADAMW, MUON
from hyper_parallel_tests.domains.optimizer.training import assert_trains_as_on_one_card
from hyper_parallel_tests.domains.optimizer.updates import divided_steps, on_one_card
from hyper_parallel_tests.harness import assert_close, contract, in_clean_process

PAIRS = [("fsdp", "tp_fsdp"), ("tp_fsdp", "hsdp"), ("hsdp", "fsdp")]

each_layout = pytest.mark.parametrize("layout", ON_FOUR.values(), ids=ON_FOUR)


@contract("OP-2-01")
@pytest.mark.parametrize("kind", ["AdamW", "Muon"])
@pytest.mark.parametrize("shape", [(8, 6), (3, 5)], ids=["even", "empty"])
def test_divided_twice(engine, world, ledger, kind, shape):
    """A matrix that is divided by rows and by columns steps bit by bit as the whole."""
    mesh = world.mesh(x=world.size // 2, y=2)
    found = divided_steps(engine, kind, shape, mesh, [engine.Shard(0), engine.Shard(1)])
    assert_close(found, in_clean_process(on_one_card, kind, shape), ledger["exact"], what="parameter")


@contract("OP-2-01")
@pytest.mark.parametrize(("first", "second"), PAIRS, ids=map("-to-".join, PAIRS))
def test_goes_on(engine, world, ledger, first, second):
    """Saved in one layout and loaded in another, training goes on as on a single card."""
    assert_goes_on(engine, world, ledger, ON_FOUR[first], ON_FOUR[second], whole=False)


@contract("OP-2-01")
@each_layout
def test_both(engine, world, ledger, layout):
    """Three steps are a single card's, with uneven and empty shards, frozen and unused parameters."""
    assert_trains_as_on_one_card(engine, world, ledger, layout, muon=MUON, adamw=ADAMW)


@contract("OP-2-01")
@each_layout
def test_adamw_alone(engine, world, ledger, layout):
    """So are those of AdamW for everything, in single precision."""
    assert_trains_as_on_one_card(engine, world, ledger, layout, adamw=ADAMW)

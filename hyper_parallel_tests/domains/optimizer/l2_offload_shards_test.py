"""Shards whose gradients and optimizer state are on the host against the same on the device, bit by bit."""

from __future__ import annotations

from typing import Any

import pytest

from hyper_parallel_tests.domains.optimizer.layouts import ON_TWO
from hyper_parallel_tests.domains.optimizer.network import ADAMW, MUON, batches, loss, network
from hyper_parallel_tests.domains.optimizer.offload import Offloaded, in_two_parts
from hyper_parallel_tests.harness import World, assert_parity, contract, mean_over_ranks, train
from hyper_parallel_tests.harness.judging.parity import Track

SELECTIONS = [("gradients",), ("state",), ("gradients", "state")]


PASSES = {"one_backward": (loss, {}), "two_backwards": (in_two_parts, {"backward": None})}


def on_device(engine: Any, world: World, layout: Any, passes: Any, options: dict[str, Any]) -> Track:
    model = layout.lay(engine, world, network(layout.sizes, device=world.device))
    rows = [layout.rows(world, one) for one in batches(world)]
    chain = engine.get_hyper_optimizer(model, muon=MUON, adamw=ADAMW)
    return train(model, rows, passes, optimizer=lambda _: chain, average=mean_over_ranks, **options)


@contract("OP-2-02")
@pytest.mark.parametrize("layout", ON_TWO.values(), ids=ON_TWO)
@pytest.mark.parametrize("what", SELECTIONS, ids="-".join)
@pytest.mark.parametrize(("passes", "options"), PASSES.values(), ids=PASSES)
def test_training(engine, world, ledger, layout, what, passes, options):
    """Three steps with uneven and empty shards are those of the device."""
    model = layout.lay(engine, world, network(layout.sizes, device=world.device))
    run = Offloaded(engine, model, what)
    rows = [layout.rows(world, one) for one in batches(world)]
    candidate = train(model, rows, passes, average=mean_over_ranks, **run.options(), **options)
    because = "one training is held to itself with everything on the device"
    expected = on_device(engine, world, layout, passes, options)
    assert_parity(candidate, expected, ledger["exact"], own_because=because)

"""Shards whose gradients and optimizer state are on the host against the same on the device, bit by bit."""

from __future__ import annotations

from typing import Any

import pytest
from torch import Tensor, nn

from hyper_parallel_tests.domains.optimizer.layouts import ON_TWO
from hyper_parallel_tests.domains.optimizer.network import ADAMW, MUON, batches, loss, network
from hyper_parallel_tests.domains.optimizer.offload import Offloaded
from hyper_parallel_tests.harness import World, assert_parity, contract, mean_over_ranks, train
from hyper_parallel_tests.harness.judging.parity import Track
from hyper_parallel_tests.models.seeding import Batch

SELECTIONS = [("gradients",), ("state",), ("gradients", "state")]


def in_two_parts(model: nn.Module, rows: Batch) -> Tensor:
    """Two backwards before the step."""
    shares = [loss(model, rows.part(part, 2)) / 2 for part in range(2)]
    for share in shares:
        share.backward()
    return shares[0].detach() + shares[1].detach()


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

"""A module sharded over a mesh of two dimensions against the unsharded one."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from hyper_parallel_tests.domains.shard.networks import SGD, block, block_plan, train_on_one_card, train_sharded
from hyper_parallel_tests.domains.shard.setting import layout, on
from hyper_parallel_tests.harness import assert_parity, contract


@contract("SH-2-01")
def test_training(engine, world, ledger):
    """Rows divided over one mesh dimension and parameters over the other train as on one card."""
    mesh = world.mesh(dp=2, tp=2)

    def give(one: Tensor) -> Any:
        return on(engine, mesh, one, "S0", "S1")

    model = engine.shard_module(block(world), mesh, block_plan(engine, grid=True))
    candidate = train_sharded(engine, world, model, "mixed", optimizer=SGD, give=give)
    assert tuple(model.down.placements) == layout(engine, "R", "S0")
    assert_parity(candidate, train_on_one_card(world, "mixed"), ledger["tp_fp32"])

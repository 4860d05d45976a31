"""A training that goes on in another layout, with all that the optimizers know."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from hyper_parallel_tests.domains.optimizer.layouts import Layout
from hyper_parallel_tests.domains.optimizer.network import (
    ADAMW,
    EVEN,
    MUON,
    batches,
    loss,
    network,
    train_on_one_card,
)
from hyper_parallel_tests.harness import World, assert_parity, mean_over_ranks, train
from hyper_parallel_tests.harness.judging.comparison import full

BEFORE, AFTER = 2, 2


def assert_goes_on(engine: Any, world: World, ledger: Any, first: Layout, second: Layout, *, whole: bool) -> None:
    """Two steps in one layout and two in another are a single card's four.

    Args:
        whole: whether the state travels as whole tensors, or as it is divided in the first layout.
    """
    rows = batches(world, BEFORE + AFTER)
    precision = {"dtype": torch.float64, "device": world.device}
    old = first.lay(engine, world, network(EVEN, **precision))
    chain = engine.get_hyper_optimizer(old, muon=MUON, adamw=ADAMW)
    mine = [first.rows(world, one) for one in rows[:BEFORE]]
    trained = train(old, mine, loss, optimizer=lambda _: chain, average=mean_over_ranks)
    state = {
        key: full(value) if whole and isinstance(value, Tensor) else value for key, value in chain.state_dict().items()
    }

    new = network(EVEN, **precision)
    new.load_state_dict(trained.steps[-1].params, strict=False)
    new = second.lay(engine, world, new)
    others = engine.get_hyper_optimizer(new, muon=MUON, adamw=ADAMW)
    others.load_state_dict(state)
    mine = [second.rows(world, one) for one in rows[BEFORE:]]
    candidate = train(new, mine, loss, optimizer=lambda _: others, average=mean_over_ranks)

    baseline = train_on_one_card(network(EVEN, **precision), rows)
    rest = replace(baseline, steps=baseline.steps[BEFORE:], start=baseline.steps[BEFORE - 1].params)
    assert_parity(candidate, rest, ledger["update_fp64"])

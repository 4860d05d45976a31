"""Trains the network in a layout, and holds it to a single card's."""

from __future__ import annotations

from typing import Any

import torch

from hyper_parallel_tests.domains.optimizer.layouts import Layout
from hyper_parallel_tests.domains.optimizer.network import batches, loss, network, train_on_one_card
from hyper_parallel_tests.harness import World, assert_parity, mean_over_ranks, train
from hyper_parallel_tests.harness.judging.parity import Track


def run(
    engine: Any,
    world: World,
    layout: Layout,
    *,
    tied: bool = False,
    muon: dict[str, Any] | None = None,
    adamw: dict[str, Any],
) -> Track:
    """Trains the network for three steps."""
    model = layout.lay(engine, world, network(layout.sizes, tied=tied, dtype=precision(muon), device=world.device))
    return train(
        model,
        [layout.rows(world, one) for one in batches(world)],
        loss,
        optimizer=lambda _: engine.get_hyper_optimizer(model, muon=muon, adamw=adamw),
        average=mean_over_ranks,
    )


def precision(muon: dict[str, Any] | None) -> torch.dtype:
    """Double where Muon takes part.

    It rounds the momentum to bfloat16 and enlarges what is small, so that what the order of a sum changes in single
    precision would come out as up to a tenth of a step.
    """
    return torch.float32 if muon is None else torch.float64


def assert_trains_as_on_one_card(
    engine: Any,
    world: World,
    ledger: Any,
    layout: Layout,
    *,
    tied: bool = False,
    muon: dict[str, Any] | None = None,
    adamw: dict[str, Any],
) -> None:
    """Losses, norms, gradients and parameters of three steps are those of PyTorch's optimizers on a single card."""
    candidate = run(engine, world, layout, tied=tied, muon=muon, adamw=adamw)
    whole = network(layout.sizes, tied=tied, dtype=precision(muon), device=world.device)
    baseline = train_on_one_card(whole, batches(world), muon=muon, adamw=adamw)
    assert_parity(candidate, baseline, ledger[layout.row if muon is None else "update_fp64"])

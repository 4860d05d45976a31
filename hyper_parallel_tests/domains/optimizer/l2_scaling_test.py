"""The factor on reduced gradients, the norm that they are clipped by, and the step that follows."""

from __future__ import annotations

from functools import partial

import pytest
import torch

from hyper_parallel_tests.domains.optimizer.layouts import ON_TWO
from hyper_parallel_tests.domains.optimizer.network import MUON, batches, loss, network, train_on_one_card
from hyper_parallel_tests.harness import assert_parity, contract, mean_over_ranks, train

LAYOUT = ON_TWO["fsdp"]
# So large an epsilon that AdamW's step depends on the scale of the gradients.
ADAMW = {"lr": 0.05, "eps": 0.5, "weight_decay": 0.1}
# Between the norm with the factor and that without.
BOUNDS = {"clipped": 0.3, "clipped_without_the_factor": 2.0, "unclipped": 1e6}


def scaled_and_clipped(model: torch.nn.Module, factor: float, bound: float) -> torch.Tensor:
    """On one card."""
    for one in model.parameters():
        if one.grad is not None:
            one.grad.mul_(factor)
    return torch.nn.utils.clip_grad_norm_(model.parameters(), bound)


@contract("OP-2-01")
@pytest.mark.parametrize("bound", BOUNDS.values(), ids=BOUNDS)
@pytest.mark.parametrize("factor", [0.25, 2.0], ids=["smaller", "larger"])
def test_factor_norm_and_step(engine, world, ledger, factor, bound):
    """The norm is that of the scaled gradients, and the step that of the scaled and clipped ones."""
    model = LAYOUT.lay(engine, world, network(dtype=torch.float64, device=world.device))
    model.set_gradient_scaling_factor(factor)
    candidate = train(
        model,
        [LAYOUT.rows(world, one) for one in batches(world)],
        loss,
        optimizer=lambda _: engine.get_hyper_optimizer(model, muon=MUON, adamw=ADAMW),
        average=mean_over_ranks,
        before_update=lambda model: engine.clip_grad_norm_(model.parameters(), bound),
    )
    baseline = train_on_one_card(
        network(dtype=torch.float64, device=world.device),
        batches(world),
        before_update=partial(scaled_and_clipped, factor=factor, bound=bound),
        adamw=ADAMW,
    )
    assert_parity(candidate, baseline, ledger["update_fp64"])

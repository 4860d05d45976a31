"""Every plan that is proposed for a small decoder, carried out."""

from __future__ import annotations

from functools import partial

import pytest
import torch

from hyper_parallel_tests.domains.auto_parallel.enumeration import shown
from hyper_parallel_tests.domains.auto_parallel.programs import (
    SHAPE,
    WORKLOAD,
    batches,
    carry_out,
    whole_loss,
)
from hyper_parallel_tests.harness import assert_close, contract, train_baseline
from hyper_parallel_tests.models.decoder import decoder
from hyper_parallel_tests.models.decoder_layouts import adam

PLENTY = 1 << 40


@contract("AP-2-01")
def test_plans_run_and_fit(engine, world, ledger, artifacts):
    """Each plan trains like one card, and its fullest rank holds what the estimate says, up to the error it states."""
    baseline = train_baseline(decoder(SHAPE), batches(torch.device("cpu")), whole_loss, optimizer=partial(adam))
    expected = torch.tensor([one.loss for one in baseline.steps])
    plans = engine.search_plans(WORKLOAD, world.size, memory_limit=PLENTY)
    lines, outside = ["| plan | estimated bytes | measured bytes | measured / estimated |\n|---|---:|---:|---:|\n"], []
    for plan in plans:
        outcome = carry_out(engine, world, plan)
        assert_close(outcome.losses, expected, ledger["tp_fsdp_fp32"], what=f"losses of {shown(plan)}")
        line = f"| {shown(plan)} | {plan.memory} | {outcome.bytes} | {outcome.bytes / plan.memory:.3f} |\n"
        lines.append(line)
        if abs(outcome.bytes - plan.memory) > plan.memory_error * plan.memory:
            outside.append(line)
    if world.rank == 0:
        (artifacts / "plans.md").write_text("".join(lines))
    assert not outside, f"outside of {plans[0].memory_error:.0%}:\n{''.join(outside)}"


@contract("AP-2-01")
@pytest.mark.parametrize("share", [0.7, 0.5], ids=["tight", "tighter"])
def test_best_plan_keeps_within_a_card(engine, world, share):
    """The best plan for a card that cannot hold the model alone runs in that card's memory."""
    limit = int(share * engine.estimate_plan(WORKLOAD, {}).memory)
    (best,) = engine.search_plans(WORKLOAD, world.size, memory_limit=limit, top_k=1)
    outcome = carry_out(engine, world, best)
    assert outcome.bytes <= limit * (1 + best.memory_error), f"{shown(best)} holds {outcome.bytes} bytes of {limit}"

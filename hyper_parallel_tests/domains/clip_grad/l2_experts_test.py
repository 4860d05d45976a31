"""Training with clipping against a single card: experts on a mesh of their own beside dense parameters."""

from __future__ import annotations

import pytest

from hyper_parallel_tests.domains.clip_grad.experts import batches, divide, experts, mean_loss, train_experts
from hyper_parallel_tests.domains.clip_grad.reference import NORM_TYPES
from hyper_parallel_tests.domains.clip_grad.setting import train_on_one_card
from hyper_parallel_tests.harness import assert_parity, contract

BOUND = 0.05

each_norm = pytest.mark.parametrize("norm_type", NORM_TYPES)


@contract("CG-2-01")
@pytest.mark.parametrize("gate", ["sharded", "copied"])
@each_norm
def test_experts_beside_a_dense_gate(engine, world, ledger, norm_type, gate):
    """Experts divided over all ranks count each once, and so does the gate, whether divided or copied."""
    p = NORM_TYPES[norm_type]
    model = divide(engine, experts(world), world.mesh(ep=world.size))
    copied = set(model.gate.parameters()) if gate == "copied" else None
    engine.fully_shard(model.gate, mesh=world.mesh(dp=world.size), replicate_params=copied)
    model.gate.set_reduce_op_type("sum")
    candidate = train_experts(engine, world, model, BOUND, p)
    baseline = train_on_one_card(experts(world), batches(world), BOUND, p, loss=mean_loss)
    # Every expert sees every row, and there is no auxiliary loss: the wider bands of routed experts are not these'.
    assert_parity(candidate, baseline, ledger["fsdp_1d_fp32"])

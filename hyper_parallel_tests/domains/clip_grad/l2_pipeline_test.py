"""Training with clipping against a single card: the norm spans the stages of a pipeline."""

from __future__ import annotations

import pytest

from hyper_parallel_tests.domains.clip_grad.pipeline import Pipeline, halves
from hyper_parallel_tests.domains.clip_grad.reference import NORM_TYPES
from hyper_parallel_tests.domains.clip_grad.setting import batches, network, sgd, train_on_one_card
from hyper_parallel_tests.harness import assert_close, assert_parity, contract, train

BOUND = 0.1

each_norm = pytest.mark.parametrize("norm_type", NORM_TYPES)


@contract("CG-2-01")
@each_norm
def test_pipeline_stages(engine, world, ledger, norm_type):
    """Each stage is clipped by the norm of both, and trains as its layers do on a single card."""
    p, mesh = NORM_TYPES[norm_type], world.mesh(pp=2)
    pipeline = Pipeline(engine, mesh)
    stage = halves(network(world))[mesh.get_local_rank()]
    candidate = train(
        stage,
        batches(world),
        pipeline.run,
        optimizer=sgd,
        backward=None,
        before_update=lambda model: engine.clip_grad_norm_(model.parameters(), BOUND, p, pp_mesh=mesh),
    )
    own = {name for name, _ in stage.named_parameters()}
    baseline = train_on_one_card(network(world), batches(world), BOUND, p).only(own)
    # No row is for a pipeline alone, and none for training is stricter: stages exchange activations unchanged.
    assert_parity(candidate, baseline, ledger["pp_fsdp_fp32"])


@contract("CG-2-01")
@pytest.mark.parametrize("guilty", [0, 1], ids=["first_stage", "last_stage"])
@each_norm
def test_error_reaches_all_stages(engine, world, ledger, norm_type, guilty):
    """A gradient that is not finite in one stage is an error in both, and nothing is scaled."""
    mesh = world.mesh(pp=2)
    stage = halves(network(world))[mesh.get_local_rank()]
    Pipeline(engine, mesh).run(stage, batches(world)[0])
    if mesh.get_local_rank() == guilty:
        next(stage.parameters()).grad[0, 0] = float("nan")
    before = {name: one.grad.nan_to_num().clone() for name, one in stage.named_parameters()}
    with pytest.raises(RuntimeError, match="error_if_nonfinite"):
        engine.clip_grad_norm_(stage.parameters(), BOUND, NORM_TYPES[norm_type], error_if_nonfinite=True, pp_mesh=mesh)
    after = {name: one.grad.nan_to_num() for name, one in stage.named_parameters()}
    assert_close(after, before, ledger["exact"], what="gradients")

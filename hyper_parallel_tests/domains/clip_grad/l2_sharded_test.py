"""Training with clipping against a single card: parameters divided or copied over one mesh dimension."""

from __future__ import annotations

from typing import Any

import pytest

from hyper_parallel_tests.domains.clip_grad.layouts import fsdp, fsdp_with_copies, tp
from hyper_parallel_tests.domains.clip_grad.reference import NORM_TYPES
from hyper_parallel_tests.domains.clip_grad.setting import (
    EVEN,
    batches,
    loss,
    mine,
    network,
    sgd,
    train_on_one_card,
)
from hyper_parallel_tests.harness import (
    World,
    assert_bitwise_repeatable,
    assert_parity,
    contract,
    mean_over_ranks,
    train,
)
from hyper_parallel_tests.harness.judging.parity import Track
from hyper_parallel_tests.models.mlp import Mlp

# Below the gradient norm of every step, and above.
BOUNDS = {"clipped": 0.1, "within_the_bound": 1e6}

each_norm = pytest.mark.parametrize("norm_type", NORM_TYPES)
each_bound = pytest.mark.parametrize("bound", BOUNDS)


def train_on_own_rows(engine: Any, world: World, model: Mlp, max_norm: float, norm_type: float) -> Track:
    """Trains on ranks with rows of their own, and clips by the norm of all."""
    return train(
        model,
        [mine(world, one) for one in batches(world)],
        loss,
        optimizer=sgd,
        average=mean_over_ranks,
        before_update=lambda model: engine.clip_grad_norm_(model.parameters(), max_norm, norm_type),
    )


@contract("CG-2-01")
@pytest.mark.parametrize("layout", [fsdp, fsdp_with_copies], ids=lambda one: one.__name__)
@each_norm
@each_bound
def test_data_parallel(engine, world, ledger, layout, norm_type, bound):
    """Over two steps, each rank with rows of its own, norm, gradients and parameters are the single card's."""
    max_norm, p = BOUNDS[bound], NORM_TYPES[norm_type]
    candidate = train_on_own_rows(engine, world, layout(engine, world), max_norm, p)
    baseline = train_on_one_card(network(world), batches(world), max_norm, p)
    assert_parity(candidate, baseline, ledger["fsdp_1d_fp32"])


@contract("CG-2-01")
@each_norm
def test_clipped_training_repeats_bit_by_bit(engine, world, norm_type):
    """The same training again in the same process gives the same bits, the norms among them."""
    max_norm, p = BOUNDS["clipped"], NORM_TYPES[norm_type]
    assert_bitwise_repeatable(
        lambda: train_on_own_rows(engine, world, fsdp_with_copies(engine, world), max_norm, p).steps
    )


@contract("CG-2-01")
@each_norm
def test_rank_with_empty_shards(engine, world, ledger, norm_type):
    """A rank that holds no row of any parameter changes nothing."""
    p = NORM_TYPES[norm_type]
    candidate = train(
        fsdp(engine, world, width=1),
        [mine(world, one) for one in batches(world, width=1)],
        loss,
        optimizer=sgd,
        average=mean_over_ranks,
        before_update=lambda model: engine.clip_grad_norm_(model.parameters(), 0.1, p),
    )
    baseline = train_on_one_card(network(world, width=1), batches(world, width=1), 0.1, p)
    assert_parity(candidate, baseline, ledger["fsdp_1d_fp32"])


@contract("CG-2-01")
@each_norm
@each_bound
def test_tensor_parallel(engine, world, ledger, norm_type, bound):
    """Divided layers count in full, the whole ones once, and all ranks have the same rows."""
    max_norm, p = BOUNDS[bound], NORM_TYPES[norm_type]
    candidate = train(
        tp(engine, world),
        batches(world, EVEN),
        loss,
        optimizer=sgd,
        before_update=lambda model: engine.clip_grad_norm_(model.parameters(), max_norm, p),
    )
    baseline = train_on_one_card(network(world, EVEN), batches(world, EVEN), max_norm, p)
    # No row is for tensor parallelism alone, and none for training is stricter: this one's reason is all that differs.
    assert_parity(candidate, baseline, ledger["tp_fsdp_fp32"])

"""Gradients with NaN or infinity in one rank's shard."""

from __future__ import annotations

import math

import pytest
import torch

from hyper_parallel_tests.domains.clip_grad.reference import NORM_TYPES
from hyper_parallel_tests.domains.clip_grad.setting import (
    batch,
    loss,
    mine,
    own_shard,
    sharded_network,
    shards,
    single_card_gradients,
)
from hyper_parallel_tests.harness import assert_close, contract

POISONED = "layers.1.weight"

each_norm = pytest.mark.parametrize("norm_type", NORM_TYPES)
each_value = pytest.mark.parametrize("value", [math.inf, math.nan], ids=["infinite", "nan"])
each_rank = pytest.mark.parametrize("guilty", [0, -1], ids=["first_rank", "last_rank"])


def poisoned(engine, world, value, guilty):
    """A sharded network one of whose gradients has one bad element, on one rank."""
    model = sharded_network(engine, world)
    loss(model, mine(world, batch(world))).backward()
    if world.rank == guilty % world.size:
        shards(engine, model)[POISONED][0, 0] = value
    return model


def bad_elements(engine, model) -> dict[str, int]:
    """Number of elements that are NaN or infinite in this rank's shards, by parameter."""
    return {name: int((~torch.isfinite(one)).sum()) for name, one in shards(engine, model).items()}


@contract("CG-1-01")
@each_rank
@each_value
@each_norm
def test_norm_is_not_finite_on_any_rank(engine, world, norm_type, value, guilty):
    """One bad element on one rank makes the norm NaN, or infinite, on all."""
    model = poisoned(engine, world, value, guilty)
    norm = engine.clip_grad_norm_(model.parameters(), 0.1, norm_type=NORM_TYPES[norm_type])
    assert str(norm.item()) == str(value)


@contract("CG-1-01")
@each_value
def test_gradients_are_scaled_by_what_comes_of_it(engine, world, value):
    """An infinite norm makes finite gradients zero, a NaN spreads to all, so that no rank steps alone."""
    model = poisoned(engine, world, value, guilty=0)
    engine.clip_grad_norm_(model.parameters(), 0.1)
    for name, one in shards(engine, model).items():
        bad = torch.zeros_like(one, dtype=torch.bool)
        if world.rank == 0 and name == POISONED:
            bad[0, 0] = True
        if math.isnan(value):
            bad[:] = True
        assert torch.isnan(one).tolist() == bad.tolist(), name
        assert not one[~bad].any(), f"{name} is neither zero nor NaN"


@contract("CG-1-01")
@each_rank
@each_value
@each_norm
def test_error_on_every_rank_if_asked_for(engine, world, ledger, norm_type, value, guilty):
    """With error_if_nonfinite all ranks raise together, and every gradient is as it was."""
    model = poisoned(engine, world, value, guilty)
    with pytest.raises(RuntimeError, match="error_if_nonfinite"):
        engine.clip_grad_norm_(model.parameters(), 0.1, norm_type=NORM_TYPES[norm_type], error_if_nonfinite=True)
    bad = {name: int(world.rank == guilty % world.size and name == POISONED) for name in bad_elements(engine, model)}
    assert bad_elements(engine, model) == bad
    reference = single_card_gradients(world, batch(world))
    good = {name: own_shard(world, one) for name, one in reference.items() if name != POISONED}
    found = {name: one for name, one in shards(engine, model).items() if name != POISONED}
    assert_close(found, good, ledger["fsdp_1d_fp32"], what="gradients")


@contract("CG-1-01")
def test_no_error_for_finite_gradients(engine, world, ledger):
    """error_if_nonfinite changes nothing where the norm is finite."""
    model, plain = (sharded_network(engine, world) for _ in range(2))
    for one in (model, plain):
        loss(one, mine(world, batch(world))).backward()
    norm = engine.clip_grad_norm_(model.parameters(), 0.1, error_if_nonfinite=True)
    assert_close(norm, engine.clip_grad_norm_(plain.parameters(), 0.1), ledger["exact"], what="norm")
    assert_close(shards(engine, model), shards(engine, plain), ledger["exact"], what="gradients")

"""Clipping of sharded gradients by their global norm, against a single card."""

from __future__ import annotations

from functools import partial

import torch
from torch.nn.utils import clip_grad_norm_

from hyper_parallel_tests.domains.fully_shard.setting import (
    batch,
    either_fusion,
    gradients,
    loss,
    mine,
    network,
    parts,
    sharded_network,
)
from hyper_parallel_tests.harness import (
    assert_bitwise_repeatable,
    assert_close,
    assert_differs,
    assert_parity,
    contract,
    mean_over_ranks,
    train,
    train_baseline,
)

# Below every rank's own norm here, so that each gradient is really clipped.
MAX_NORM = 0.25
sgd = partial(torch.optim.SGD, lr=0.1, momentum=0.9)


def norm_of(tensors) -> torch.Tensor:
    return torch.cat([tensor.flatten() for tensor in tensors]).norm()


def batches(world):
    return [batch(world, seed=step) for step in range(2)]


def train_clipped(engine, world, comm_fusion):
    return train(
        sharded_network(engine, world, comm_fusion=comm_fusion),
        [mine(world, rows) for rows in batches(world)],
        loss,
        optimizer=sgd,
        average=mean_over_ranks,
        before_update=lambda one: engine.clip_grad_norm_(one.parameters(), MAX_NORM),
    )


def clip(model):
    """Clips the gradients of a plain model and returns their norm before it."""
    return clip_grad_norm_(model.parameters(), MAX_NORM)


@contract("FSDP-L2-07")
@either_fusion
def test_grad_clip_with_dtensor_grads(engine, world, ledger, comm_fusion):
    """The norm is that of all shards together, bounds what is left, and scales as on a single card."""
    model = sharded_network(engine, world, comm_fusion=comm_fusion)
    loss(model, mine(world, batch(world))).backward()
    own = norm_of(gradients(engine, model).values())
    norm = engine.clip_grad_norm_(model.parameters(), MAX_NORM)
    single = train_baseline(network(world), [batch(world)], loss, before_update=clip).steps[0]
    assert_close(norm, single.norm, ledger["fsdp_1d_fp32"], what="global norm")
    assert_differs(norm, own, ledger["fsdp_1d_fp32"], what="norm, against that of this rank's shards")
    assert_close(gradients(engine, model), parts(world, single.grads), ledger["fsdp_1d_fp32"], what="clipped gradients")
    left = norm_of(parameter.grad.full_tensor() for parameter in model.parameters())
    assert left <= MAX_NORM + ledger["clip_norm_bound"].norm


@contract("FSDP-L2-07")
@either_fusion
def test_grad_clip_with_dtensor_grads_in_training(engine, world, ledger, comm_fusion):
    """Clipped between backward and update, two steps follow the single card's."""
    candidate = train_clipped(engine, world, comm_fusion)
    baseline = train_baseline(network(world), batches(world), loss, optimizer=sgd, before_update=clip)
    assert_parity(candidate, baseline, ledger["fsdp_1d_fp32"])


@contract("FSDP-L2-07")
def test_grad_clip_training_repeats_bit_by_bit(engine, world):
    """The same clipped training again in the same process gives the same bits."""
    assert_bitwise_repeatable(lambda: train_clipped(engine, world, comm_fusion=True).steps)

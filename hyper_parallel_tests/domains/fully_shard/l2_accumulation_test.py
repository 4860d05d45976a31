"""Gradients accumulated over micro-steps without communication, against DDP on the whole batch."""

from __future__ import annotations

from functools import partial

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP

from hyper_parallel_tests.domains.fully_shard.setting import (
    ROWS_PER_RANK,
    either_fusion,
    either_width,
    gradients,
    loss,
    mine,
    network,
    pending_gradients,
    plain_or_demanding,
    sharded_network,
    single_card_gradients,
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
from hyper_parallel_tests.models.mlp import mlp_batch

MICRO_STEPS = 4
sgd = partial(torch.optim.SGD, lr=0.1, momentum=0.9)


def large_batches(world, width):
    """Two of this rank's parts of a batch that is worth all micro-steps."""
    rows = ROWS_PER_RANK * MICRO_STEPS * world.size
    return [mine(world, mlp_batch(step, rows, width)).to(world.device) for step in range(2)]


def micro_steps(model, rows):
    """Forward and backward in parts, of which only the last one communicates; returns the mean loss."""
    total = 0.0
    for number in range(MICRO_STEPS):
        model.set_requires_gradient_sync(number == MICRO_STEPS - 1)
        share = loss(model, rows.part(number, MICRO_STEPS)) / MICRO_STEPS
        share.backward()
        total = total + share.detach()
    return total


def train_in_micro_steps(engine, world, width, comm_fusion):
    model = sharded_network(engine, world, width, comm_fusion=comm_fusion)
    return train(
        model,
        large_batches(world, width),
        micro_steps,
        optimizer=sgd,
        average=mean_over_ranks,
        backward=None,
    )


@contract("FSDP-L2-01")
@either_width
@either_fusion
def test_gradient_accumulation(engine, world, ledger, width, comm_fusion):
    """The merged gradient of N micro-steps is DDP's of the large batch, and so are loss and parameters."""
    rows = large_batches(world, width)
    baseline = train_baseline(network(world, width), rows, loss, wrap=DDP, optimizer=sgd, average=mean_over_ranks)
    candidate = train_in_micro_steps(engine, world, width, comm_fusion)
    assert_parity(candidate, baseline, ledger["fsdp_1d_fp32"])


@contract("FSDP-L2-01")
@either_fusion
def test_gradient_accumulation_is_not_synchronised_between(engine, world, ledger, comm_fusion):
    """After each micro-step but the last the ranks hold different gradients, each the sum of its own."""
    model = sharded_network(engine, world, comm_fusion=comm_fusion)
    rows = mine(world, mlp_batch(0, ROWS_PER_RANK * MICRO_STEPS * world.size, 6)).to(world.device)
    model.set_requires_gradient_sync(False)
    for number in range(MICRO_STEPS - 1):
        loss(model, rows.part(number, MICRO_STEPS)).backward()
        held = pending_gradients(engine, model)
        assert gradients(engine, model) == {}
        own = single_card_gradients(world, *(rows.part(one, MICRO_STEPS) for one in range(number + 1)))
        assert_close(held, own, ledger["fsdp_1d_fp32"], what=f"own gradients after micro-step {number}")
        for name, tensor in sorted(held.items()):
            everyones = [torch.empty_like(tensor) for _ in range(world.size)]
            dist.all_gather(everyones, tensor.contiguous())
            assert_differs(everyones[0], everyones[1], ledger["fsdp_1d_fp32"], what=f"{name} of rank 0 and rank 1")


@contract("FSDP-L2-01")
@plain_or_demanding
def test_gradient_accumulation_repeats_bit_by_bit(engine, world, width, comm_fusion):
    """The same micro-steps again in the same process give the same bits."""
    assert_bitwise_repeatable(lambda: train_in_micro_steps(engine, world, width, comm_fusion).steps)

"""Networks that are no plain chain: shared, reused and unused parts, buffers, lists, several forwards."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from torch.nn.parallel import DistributedDataParallel as DDP

from hyper_parallel_tests.domains.fully_shard.setting import WIDTHS, each_layout, mine, plain_or_demanding, wrap
from hyper_parallel_tests.domains.fully_shard.structures import Normed, Sometimes, Tied, Twice
from hyper_parallel_tests.harness import (
    assert_bitwise_repeatable,
    assert_close,
    assert_parity,
    contract,
    mean_over_ranks,
    train,
    train_baseline,
)
from hyper_parallel_tests.models.mlp import mlp_batch, mlp_loss
from hyper_parallel_tests.models.seeding import build

ROWS = 8
STEPS = 3
sgd = partial(torch.optim.SGD, lr=0.1, momentum=0.9)


# Even shards alone, fused ones alone, and without a row on the second rank both.
each_sharding = pytest.mark.parametrize(
    ("width", "comm_fusion"),
    [
        (WIDTHS["even"], False),
        (WIDTHS["odd"], True),
        (WIDTHS["empty_shards"], False),
        (WIDTHS["empty_shards"], True),
    ],
    ids=["even-single", "odd-fused", "empty_shards-single", "empty_shards-fused"],
)

NETWORKS = {"tied": Tied, "used_twice": Twice, "used_sometimes": Sometimes}


def loss_of_two_forwards(model, batch):
    """Two forwards, then one backward through both."""
    halves = [mlp_loss(model, batch.part(half, 2)) for half in range(2)]
    return sum(halves) / 2


def made(world, kind, width):
    return build(lambda: kind(width), seed=0).to(world.device)


def sharded(engine, world, layout, kind, width, comm_fusion):
    """The middle layer by itself, all else with the root."""
    model = made(world, kind, width)
    return wrap(engine, model, [model.middle], layout.mesh(world), comm_fusion=comm_fusion)


def batches(world, width):
    return [mlp_batch(step, ROWS * world.size, width).to(world.device) for step in range(STEPS)]


def run(world, model, width, loss=mlp_loss):
    rows = [mine(world, one) for one in batches(world, width)]
    return train(model, rows, loss, optimizer=sgd, average=mean_over_ranks)


def run_on_one_card(world, kind, width, loss=mlp_loss):
    return train_baseline(made(world, kind, width), batches(world, width), loss, optimizer=sgd)


def run_ddp(world, width):
    """With batch statistics of each rank's own rows."""
    return train_baseline(
        made(world, Normed, width),
        [mine(world, one) for one in batches(world, width)],
        mlp_loss,
        wrap=partial(DDP, broadcast_buffers=False),
        optimizer=sgd,
        average=mean_over_ranks,
    )


@contract("FS-2-05")
@each_layout
@pytest.mark.parametrize("kind", NETWORKS.values(), ids=NETWORKS)
@each_sharding
def test_shared_reused_and_unused_parts_train(engine, world, ledger, layout, kind, width, comm_fusion):
    """Tied weights, a layer that runs twice, and layers without a gradient in a step are the single card's."""
    candidate = run(world, sharded(engine, world, layout, kind, width, comm_fusion), width)
    assert_parity(candidate, run_on_one_card(world, kind, width), ledger[layout.row])


@contract("FS-2-05")
@each_layout
@plain_or_demanding
def test_unused_parts_get_no_gradient(engine, world, layout, width, comm_fusion):
    """What took no part in a step has no gradient after it, not zeros that an optimizer would act on."""
    model = sharded(engine, world, layout, Sometimes, width, comm_fusion)
    rows = mine(world, batches(world, width)[0])
    for unused in ({"never.weight", "never.bias"}, {"never.weight", "never.bias", "middle.weight", "middle.bias"}):
        model.zero_grad()
        mlp_loss(model, rows).backward()
        assert {name for name, one in model.named_parameters() if one.grad is None} == unused


@contract("FS-2-05")
@each_layout
@plain_or_demanding
def test_two_forwards_before_one_backward(engine, world, ledger, layout, width, comm_fusion):
    """Gradients of both forwards are there, each once."""
    model = sharded(engine, world, layout, Twice, width, comm_fusion)
    candidate = run(world, model, width, loss_of_two_forwards)
    baseline = run_on_one_card(world, Twice, width, loss_of_two_forwards)
    assert_parity(candidate, baseline, ledger[layout.row])


@contract("FS-2-05")
@each_layout
@plain_or_demanding
def test_buffers_are_each_ranks_own(engine, world, ledger, layout, width, comm_fusion):
    """Batch statistics are of the rank's own rows, as under DDP without broadcasts, and stay plain tensors."""
    model = sharded(engine, world, layout, Normed, width, comm_fusion)
    candidate, baseline = run(world, model, width), run_ddp(world, width)
    assert_parity(candidate, baseline, ledger[layout.row])
    buffers = dict(model.named_buffers())
    assert {type(one) for one in buffers.values()} == {torch.Tensor}
    assert_close(buffers, baseline.buffers, ledger[layout.row], what="buffers")


@contract("FS-2-05")
@each_layout
@plain_or_demanding
def test_modules_of_a_list_train(engine, world, ledger, layout, width, comm_fusion):
    """Layers wrapped by one call with a list, as one unit or each by itself, are the single card's."""
    model, mesh = made(world, Normed, width), layout.mesh(world)
    engine.fully_shard([model.middle, model.last], mesh=mesh, comm_fusion=comm_fusion)
    engine.fully_shard(model, mesh=mesh, comm_fusion=comm_fusion)
    assert_parity(run(world, model, width), run_ddp(world, width), ledger[layout.row])


@contract("FS-2-05")
@each_layout
@pytest.mark.parametrize("kind", NETWORKS.values(), ids=NETWORKS)
@plain_or_demanding
def test_training_of_such_parts_repeats_bit_by_bit(engine, world, layout, kind, width, comm_fusion):
    """The same training again in the same process gives the same bits."""
    assert_bitwise_repeatable(lambda: run(world, sharded(engine, world, layout, kind, width, comm_fusion), width).steps)

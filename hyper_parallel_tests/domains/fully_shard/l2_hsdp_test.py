"""Training on other meshes than a plain dimension: hybrid 2 x 2, made from groups, and none given."""

from __future__ import annotations

from functools import partial

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP

from hyper_parallel_tests.domains.fully_shard.reference import cast_forward, part
from hyper_parallel_tests.domains.fully_shard.setting import (
    WIDTHS,
    batch,
    each_width,
    either_fusion,
    either_width,
    gradients,
    loss,
    mine,
    network,
    plain_or_demanding,
    wrap,
)
from hyper_parallel_tests.harness import (
    assert_bitwise_repeatable,
    assert_close,
    assert_parity,
    contract,
    mean_over_ranks,
    train,
    train_baseline,
)

OPTIMIZERS = {
    "sgd_momentum": partial(torch.optim.SGD, lr=0.01, momentum=0.9),
    "adamw": partial(torch.optim.AdamW, lr=0.01, weight_decay=0.1),
}

each_optimizer = pytest.mark.parametrize("optimizer", OPTIMIZERS.values(), ids=OPTIMIZERS)


def hybrid(engine, world):
    return world.mesh(replicate=2, shard=2)


def from_two_groups(engine, world):
    """A hybrid mesh of the groups that another mesh has made."""
    made = world.mesh(replicate=2, shard=2)
    groups = [made.get_group("replicate"), made.get_group("shard")]
    ranks = torch.arange(world.size).reshape(2, 2)
    return engine.mesh_from_group(groups, world.device.type, ranks, mesh_dim_names=("replicate", "shard"))


def from_the_world(engine, world):
    """One dimension, of the default group."""
    return engine.mesh_from_group(dist.group.WORLD, world.device.type, mesh_dim_names=("dp",))


def not_given(engine, world):
    return None


ORIGINS = [(from_two_groups, "hsdp_2d_fp32"), (from_the_world, "fsdp_1d_fp32"), (not_given, "fsdp_1d_fp32")]


def batches(world, width):
    return [batch(world, seed=step, width=width) for step in range(3)]


def run(world, model, width, optimizer):
    rows = [mine(world, one) for one in batches(world, width)]
    return train(model, rows, loss, optimizer=optimizer, average=mean_over_ranks)


def run_sharded(engine, world, mesh, width, optimizer, **options):
    model = network(world, width)
    return run(world, wrap(engine, model, model.layers, mesh, **options), width, optimizer)


def run_ddp(world, width, optimizer):
    rows = [mine(world, one) for one in batches(world, width)]
    return train_baseline(network(world, width), rows, loss, wrap=DDP, optimizer=optimizer, average=mean_over_ranks)


def casting_loss(model, rows, ranks):
    """The mean loss of each rank's rows by themselves, on a card that casts."""
    shares = [rows.part(rank, ranks) for rank in range(ranks)]
    outputs = [cast_forward(model, one.inputs, torch.bfloat16, torch.float32) for one in shares]
    return sum(F.mse_loss(out, one.targets) for out, one in zip(outputs, shares, strict=True)) / ranks


@contract("FS-2-02")
@each_optimizer
@each_width
@either_fusion
def test_hybrid_mesh_trains_as_ddp_does(engine, world, ledger, optimizer, width, comm_fusion):
    """Two replicas of two shards have DDP's losses, gradients and parameters, whatever the shards' sizes."""
    candidate = run_sharded(engine, world, hybrid(engine, world), width, optimizer, comm_fusion=comm_fusion)
    assert_parity(candidate, run_ddp(world, width, optimizer), ledger["hsdp_2d_fp32"])


@contract("FS-2-02")
@plain_or_demanding
def test_hybrid_mesh_trains_in_mixed_precision(engine, world, ledger, width, comm_fusion):
    """With bf16 parameters and fp32 reductions it is a card that casts alike, over each rank's rows by themselves."""
    optimizer = OPTIMIZERS["sgd_momentum"]
    policy = engine.MixedPrecisionPolicy(
        param_dtype=torch.bfloat16, reduce_dtype=torch.float32, output_dtype=torch.float32
    )
    model, mesh = network(world, width), hybrid(engine, world)
    engine.fully_shard(model, mesh=mesh, mp_policy=policy, comm_fusion=comm_fusion)
    casting = partial(casting_loss, ranks=world.size)
    baseline = train_baseline(network(world, width), batches(world, width), casting, optimizer=optimizer)
    assert_parity(run(world, model, width, optimizer), baseline, ledger["hsdp_2d_fp32"])


@contract("FS-2-02")
@plain_or_demanding
def test_hybrid_mesh_puts_each_shard_where_it_belongs(engine, world, ledger, width, comm_fusion):
    """Both ranks of a column hold the same rows of a gradient, those that the column owns."""
    model = network(world, width)
    wrap(engine, model, model.layers, hybrid(engine, world), comm_fusion=comm_fusion)
    rows = mine(world, batch(world, width=width))
    loss(model, rows).backward()
    full = train_baseline(network(world, width), [rows], loss, wrap=DDP).steps[0].grads
    expected = {name: part(grad, dim=0, index=world.rank % 2, count=2) for name, grad in full.items()}
    assert_close(gradients(engine, model), expected, ledger["hsdp_2d_fp32"], what="shards of the gradients")


@contract("FS-2-02")
@pytest.mark.parametrize(("mesh", "row"), ORIGINS, ids=[mesh.__name__ for mesh, _ in ORIGINS])
@either_width
def test_mesh_of_another_origin_trains_as_ddp_does(engine, world, ledger, mesh, row, width):
    """A hybrid mesh from groups, one dimension from the world's group, and no mesh at all are as good."""
    optimizer = OPTIMIZERS["adamw"]
    candidate = run_sharded(engine, world, mesh(engine, world), width, optimizer)
    assert_parity(candidate, run_ddp(world, width, optimizer), ledger[row])


@contract("FS-2-02")
@pytest.mark.parametrize("mesh", [from_the_world, not_given])
def test_mesh_of_one_dimension_is_over_all_ranks(engine, world, mesh):
    """Each rank holds a quarter of the rows, not half of them as on the hybrid mesh."""
    model = network(world, WIDTHS["even"])
    wrap(engine, model, model.layers, mesh(engine, world))
    assert {tuple(one.shard.shape) for one in engine.managed_parameters(model)} == {(2, 8), (2,)}


@contract("FS-2-02")
@plain_or_demanding
def test_hybrid_mesh_training_repeats_bit_by_bit(engine, world, width, comm_fusion):
    """The same training again in the same process gives the same bits."""
    mesh, adamw = hybrid(engine, world), OPTIMIZERS["adamw"]
    assert_bitwise_repeatable(lambda: run_sharded(engine, world, mesh, width, adamw, comm_fusion=comm_fusion).steps)

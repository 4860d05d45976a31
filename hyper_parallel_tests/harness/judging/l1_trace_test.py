"""Trace on real ranks: what FSDP2, DDP and DTensor send, and when FSDP2 holds whole parameters."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Replicate, Shard, distribute_tensor

from hyper_parallel_tests.harness.judging import trace
from hyper_parallel_tests.models.mlp import mlp

WIDTH = 16
LAYER_BYTES = 4 * (WIDTH * WIDTH + WIDTH)


def sharded(world, **options) -> nn.Module:
    """Two layers, each sharded by itself."""
    mesh = init_device_mesh("cpu", (world.size,), mesh_dim_names=("dp",))
    model = mlp(WIDTH, depth=2)
    for layer in model.layers:
        fully_shard(layer, mesh=mesh, **options)
    return fully_shard(model, mesh=mesh, **options)


def step(model: nn.Module) -> None:
    model(torch.ones(2, WIDTH)).sum().backward()


def test_all_collectives_of_fsdp_are_seen_also_in_backward(world):
    """A gather a layer in forward and backward, a reduction a layer in backward, with bytes and group."""
    model, everyone = sharded(world), tuple(range(world.size))
    with trace.collectives() as sent:
        step(model)
    gather = f"all_gather float32 {LAYER_BYTES // world.size}B over {everyone}"
    reduce = f"reduce_scatter avg float32 {LAYER_BYTES}B over {everyone}"
    assert sent.lines() == [gather, gather, gather, gather, reduce, reduce]


def test_collectives_that_fsdp_saves_are_missing(world):
    """Without resharding after forward there is no second gather."""
    model = sharded(world, reshard_after_forward=False)
    with trace.collectives() as sent:
        step(model)
    assert sent.ops() == ["all_gather", "all_gather", "reduce_scatter", "reduce_scatter"]


def test_reductions_of_ddp_are_seen(world):
    """DDP's reducer starts its all-reduce from C++ in the middle of backward."""
    model = nn.parallel.DistributedDataParallel(mlp(WIDTH, depth=1))
    with trace.collectives() as sent:
        step(model)
    assert sent.lines() == [f"all_reduce sum float32 {LAYER_BYTES}B over {tuple(range(world.size))}"]


def test_redistribution_of_dtensor_is_seen(world):
    """A DTensor operation unfolds into the collectives that it costs, and no more."""
    mesh = init_device_mesh("cpu", (world.size,))
    tensor = distribute_tensor(torch.ones(4 * world.size), mesh, [Shard(0)])
    with trace.collectives() as sent:
        total = tensor.sum()
        assert sent.ops() == []
        total.redistribute(placements=[Replicate()])
        tensor.redistribute(placements=[Replicate()])
    assert [(one.op, one.reduce, one.bytes) for one in sent] == [
        ("all_reduce", "sum", 4),
        ("all_gather", "", 16),
    ]


def test_point_to_point_names_the_other_side(world):
    """Each side of a transfer names the other one."""
    other = (world.rank + 1) % world.size
    with trace.collectives() as sent:
        operations = [
            dist.P2POp(dist.isend, torch.ones(2), other),
            dist.P2POp(dist.irecv, torch.ones(2), other),
        ]
        for work in dist.batch_isend_irecv(operations):
            work.wait()
    everyone = tuple(range(world.size))
    assert sent.lines() == [
        f"send float32 8B to {other} over {everyone}",
        f"recv float32 8B from {other} over {everyone}",
    ]


def test_storage_of_fsdp_is_whole_in_use_only(world):
    """One layer is whole at a time, and none after forward or backward."""
    model = sharded(world)
    with trace.storage(model) as storage:
        step(model)
        step(model)
    for index in range(2):
        assert storage.unsharded_bytes_after(f"forward_pre layers.{index}") == LAYER_BYTES
        assert storage.unsharded_bytes_after(f"forward layers.{index}") == 0
        assert storage.unsharded_bytes_after(f"backward_pre layers.{index}") == LAYER_BYTES
    assert storage.unsharded_bytes_after("forward") == 0
    assert storage.unsharded_bytes_after("backward") == 0
    assert storage.peak() == LAYER_BYTES


@pytest.mark.parametrize("setting", ["set_reshard_after_forward", "set_reshard_after_backward"])
def test_storage_shows_what_fsdp_is_told_to_keep(world, setting):
    """With resharding off the bytes stay after that half of the step."""
    model = sharded(world)
    getattr(model, setting)(False)
    with trace.storage(model) as storage:
        step(model)
    kept = setting.removeprefix("set_reshard_after_")
    assert storage.unsharded_bytes_after(kept) == 2 * LAYER_BYTES


def test_storage_shows_what_fsdp_forgets_to_free(world, monkeypatch):
    """Whole parameters that are swapped for their shards but not freed are found."""
    from torch.distributed.fsdp._fully_shard import _fsdp_param

    monkeypatch.setattr(_fsdp_param, "free_storage", lambda tensor: None)
    model = sharded(world)
    with trace.storage(model) as storage:
        step(model)
    assert storage.unsharded_bytes_after("forward") == 2 * LAYER_BYTES

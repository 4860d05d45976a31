"""Memory of gathered parameters: by storage sizes and live tensors, never by timing."""

from __future__ import annotations

import torch

from hyper_parallel_tests.domains.fully_shard.setting import (
    batch,
    either_fusion,
    loss,
    mine,
    network,
    numels,
    parts,
    resident,
    sharded_network,
    shards,
    single_card_parameters,
)
from hyper_parallel_tests.harness import contract, trace

LAYERS = ("layers.0", "layers.1", "layers.2")


def layer_bytes(world) -> int:
    """Bytes of one layer's full parameters in fp32."""
    return sum(4 * one.numel() for one in network(world).layers[0].parameters())


@contract("FS-1-08")
@either_fusion
def test_unsharded_storage_is_freed_after_forward(engine, world, comm_fusion):
    """With reshard on, at most one layer is full at a time in forward, and none after its own or the whole."""
    model = sharded_network(engine, world, comm_fusion=comm_fusion)
    with trace.storage(model) as storage:
        loss(model, mine(world, batch(world)))
    for layer in LAYERS:
        assert storage.unsharded_bytes_after(f"forward_pre {layer}") == layer_bytes(world)
        assert storage.unsharded_bytes_after(f"forward {layer}") == 0
    assert storage.unsharded_bytes_after("forward") == 0
    assert numels(resident(engine, model)) == numels(parts(world, single_card_parameters(world)))


@contract("FS-1-08")
@either_fusion
def test_unsharded_storage_is_freed_after_backward(engine, world, comm_fusion):
    """After backward nothing is full any more, in the second step as in the first."""
    model = sharded_network(engine, world, comm_fusion=comm_fusion)
    for _ in range(2):
        with trace.storage(model) as storage:
            loss(model, mine(world, batch(world))).backward()
        assert storage.unsharded_bytes_after("backward_pre layers.2") >= layer_bytes(world)
        assert storage.unsharded_bytes_after("backward") == 0
        assert storage.peak() < len(LAYERS) * layer_bytes(world)


@contract("FS-1-08")
def test_unsharded_storage_stays_with_reshard_off(engine, world):
    """With reshard after forward off, all layers stay full until backward frees them: the measure measures."""
    model = sharded_network(engine, world)
    model.set_reshard_after_forward(False)
    with trace.storage(model) as storage:
        loss(model, mine(world, batch(world))).backward()
    assert storage.unsharded_bytes_after("forward") == len(LAYERS) * layer_bytes(world)
    assert storage.unsharded_bytes_after("backward") == 0


@contract("FS-1-08")
@either_fusion
def test_forwards_leave_no_gathered_copy(engine, world, comm_fusion):
    """Forwards under no_grad leave nothing but their outputs behind, however many."""
    model, inputs = sharded_network(engine, world, comm_fusion=comm_fusion), mine(world, batch(world)).inputs
    with trace.live_tensors() as live, torch.no_grad():
        outputs = [model(inputs) for _ in range(4)]
    expected = sum(output.untyped_storage().nbytes() for output in outputs)
    assert live.grown(awaited=expected) == expected, live.describe()


@contract("FS-1-08")
@either_fusion
def test_steps_leave_no_gathered_copy(engine, world, comm_fusion):
    """Forward and backward leave nothing but the shards' gradients behind."""
    model, rows = sharded_network(engine, world, comm_fusion=comm_fusion), mine(world, batch(world))
    with trace.live_tensors() as live:
        for _ in range(4):
            model.zero_grad()
            loss(model, rows).backward()
    expected = sum(4 * shard.numel() for shard in shards(engine, model).values())
    assert live.grown(awaited=expected) == expected, live.describe()

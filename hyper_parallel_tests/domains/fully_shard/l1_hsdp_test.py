"""Reduction over the replicas of a hybrid mesh, switched off and on."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist

from hyper_parallel_tests.domains.fully_shard.reference import part
from hyper_parallel_tests.domains.fully_shard.setting import (
    batch,
    either_fusion,
    gradients,
    group_bytes,
    loss,
    mine,
    network,
    pending_gradients,
    single_card_gradients,
    wrap,
)
from hyper_parallel_tests.harness import assert_close, assert_differs, contract, trace


def hybrid_mesh(world):
    """Two replicas of two shards each: ranks 0 and 1, ranks 2 and 3."""
    return world.mesh(replicate=2, shard=2)


def hybrid_network(engine, world, **options):
    model = network(world)
    return wrap(engine, model, model.layers, hybrid_mesh(world), **options)


def on_this_shard(world, full: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {name: part(tensor, dim=0, index=world.rank % 2, count=2) for name, tensor in full.items()}


def on_both_replicas(world, tensors: dict[str, torch.Tensor]) -> list[dict[str, torch.Tensor]]:
    """The tensors of the two ranks that hold this rank's shards, one in each replica."""
    found: list[dict[str, torch.Tensor]] = [{}, {}]
    for name, tensor in sorted(tensors.items()):
        received = [torch.empty_like(tensor) for _ in found]
        dist.all_gather(received, tensor.contiguous(), group=hybrid_mesh(world).get_group("replicate"))
        for replica, copy in zip(found, received, strict=True):
            replica[name] = copy
    return found


@contract("FSDP-L1-02")
@either_fusion
def test_set_requires_all_reduce(engine, world, ledger, comm_fusion):
    """With the all-reduce off the replicas' gradients differ; on, they are equal and the single card's."""
    model = hybrid_network(engine, world, comm_fusion=comm_fusion)
    model.set_requires_all_reduce(False)
    loss(model, mine(world, batch(world))).backward()
    assert gradients(engine, model) == {}
    first, second = on_both_replicas(world, pending_gradients(engine, model))
    assert set(first) == {name for name, _ in network(world).named_parameters()}
    assert_differs(first, second, ledger["hsdp_replicas_fp32"], what="held back gradients of the two replicas")

    model.zero_grad()
    model.set_requires_all_reduce(True)
    loss(model, mine(world, batch(world))).backward()
    first, second = on_both_replicas(world, gradients(engine, model))
    assert_close(first, second, ledger["hsdp_replicas_fp32"], what="gradients of the two replicas")
    expected = on_this_shard(world, single_card_gradients(world, batch(world)))
    assert_close(gradients(engine, model), expected, ledger["hsdp_2d_fp32"], what="gradients")


@contract("FSDP-L1-02")
@either_fusion
def test_set_requires_all_reduce_keeps_what_it_held_back(engine, world, ledger, comm_fusion):
    """Gradients of steps with the all-reduce off are in the sum once it is on."""
    batches = [batch(world, seed=step) for step in range(3)]
    model = hybrid_network(engine, world, comm_fusion=comm_fusion)
    model.set_requires_all_reduce(False)
    for rows in batches[:2]:
        loss(model, mine(world, rows)).backward()
    model.set_requires_all_reduce(True)
    loss(model, mine(world, batches[2])).backward()
    assert pending_gradients(engine, model) == {}
    expected = on_this_shard(world, single_card_gradients(world, *batches))
    assert_close(gradients(engine, model), expected, ledger["hsdp_2d_fp32"], what="accumulated gradients")


@contract("FSDP-L1-02")
def test_set_requires_all_reduce_without_recurse(engine, world, ledger):
    """recurse=False holds back the top module's own gradients alone."""
    model = network(world)
    wrap(engine, model, [model.layers[0]], hybrid_mesh(world))
    model.set_requires_all_reduce(False, recurse=False)
    loss(model, mine(world, batch(world))).backward()
    child, own = {"layers.0.bias", "layers.0.weight"}, {"layers.1.bias", "layers.1.weight"}
    own |= {"layers.2.bias", "layers.2.weight"}
    assert set(gradients(engine, model)) == child
    assert set(pending_gradients(engine, model)) == own
    expected = on_this_shard(world, single_card_gradients(world, batch(world)))
    reduced = {name: expected[name] for name in child}
    assert_close(gradients(engine, model), reduced, ledger["hsdp_2d_fp32"], what="the child's gradients")


@contract("FSDP-L1-02")
def test_set_requires_all_reduce_takes_only_flags(engine, world):
    """Anything but a bool is refused."""
    with pytest.raises(ValueError, match="requires_all_reduce"):
        hybrid_network(engine, world).set_requires_all_reduce("off")


def messages(engine, world, model) -> tuple[list[str], list[str]]:
    """What one gather and one reduction of every group send, as the trace words it."""
    mesh, sizes = hybrid_mesh(world), group_bytes(engine, model).values()
    shard, replicate = (tuple(dist.get_process_group_ranks(mesh.get_group(dim))) for dim in ("shard", "replicate"))
    scattered = [f"reduce_scatter avg float32 {2 * size}B over {shard}" for size in sizes]
    reduced = [f"all_reduce avg float32 {size}B over {replicate}" for size in sizes]
    return [f"all_gather float32 {size}B over {shard}" for size in sizes], scattered + reduced


@contract("FS-1-07")
@pytest.mark.parametrize("kept", [False, True], ids=["resharded", "kept_full"])
@either_fusion
def test_sync_off_then_on_sends_exactly_this_over_replicas(engine, world, ledger, comm_fusion, kept):
    """Off, passes only gather what is not there; on, each group is reduced over shards, then over replicas, once."""
    model = hybrid_network(engine, world, comm_fusion=comm_fusion)
    model.set_reshard_after_forward(not kept)
    model.set_reshard_after_backward(not kept)
    gathered, reduced = messages(engine, world, model)
    batches = [batch(world, seed=step) for step in range(3)]
    for rows in batches:
        first, last = rows is batches[0], rows is batches[-1]
        model.set_requires_gradient_sync(last)
        with trace.collectives() as forward:
            value = loss(model, mine(world, rows))
        with trace.collectives() as backward:
            value.backward()
        assert sorted(forward.lines()) == sorted([] if kept and not first else gathered)
        assert sorted(backward.lines()) == sorted(([] if kept else gathered) + (reduced if last else []))
    expected = on_this_shard(world, single_card_gradients(world, *batches))
    assert_close(gradients(engine, model), expected, ledger["hsdp_2d_fp32"], what="accumulated gradients")

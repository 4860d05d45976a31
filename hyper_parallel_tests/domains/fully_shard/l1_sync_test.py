"""Gradient sync switched off for some micro-steps and on for the last: what is sent, message by message."""

from __future__ import annotations

import pytest

from hyper_parallel_tests.domains.fully_shard.setting import (
    batch,
    either_fusion,
    gradients,
    group_bytes,
    loss,
    mine,
    parts,
    pending_gradients,
    sharded_network,
    single_card_gradients,
)
from hyper_parallel_tests.harness import assert_close, contract, trace

each_number = pytest.mark.parametrize("held_back", [1, 3], ids=["one_held_back", "three_held_back"])


def messages(engine, world, model) -> tuple[list[str], list[str]]:
    """What one gather and one reduction of every group send, sorted, as the trace words it."""
    ranks, sizes = tuple(range(world.size)), group_bytes(engine, model).values()
    gathered = sorted(f"all_gather float32 {size}B over {ranks}" for size in sizes)
    return gathered, sorted(f"reduce_scatter avg float32 {world.size * size}B over {ranks}" for size in sizes)


def micro_step(world, model, rows) -> tuple[list[str], list[str]]:
    """One forward and backward; what each of them sent, sorted."""
    with trace.collectives() as forward:
        value = loss(model, mine(world, rows))
    with trace.collectives() as backward:
        value.backward()
    return sorted(forward.lines()), sorted(backward.lines())


@contract("FS-1-07")
@either_fusion
@each_number
def test_sync_off_then_on_sends_exactly_this(engine, world, ledger, held_back, comm_fusion):
    """Off: each pass gathers and nothing is reduced. On: the sum is reduced once. Then all over again."""
    model = sharded_network(engine, world, comm_fusion=comm_fusion)
    gathered, reduced = messages(engine, world, model)
    for round_ in range(2):
        batches = [batch(world, seed=10 * round_ + step) for step in range(held_back + 1)]
        model.set_requires_gradient_sync(False)
        for rows in batches[:-1]:
            assert micro_step(world, model, rows) == (gathered, gathered)
            assert gradients(engine, model) == {}
            assert len(pending_gradients(engine, model)) == 6
        model.set_requires_gradient_sync(True)
        assert micro_step(world, model, batches[-1]) == (gathered, sorted(gathered + reduced))
        assert pending_gradients(engine, model) == {}
        expected = parts(world, single_card_gradients(world, *batches))
        assert_close(gradients(engine, model), expected, ledger["fsdp_1d_fp32"], what="accumulated gradients")
        model.zero_grad()


@contract("FS-1-07")
@either_fusion
def test_sync_off_and_parameters_kept_sends_one_gather(engine, world, ledger, comm_fusion):
    """With resharding off as well, all micro-steps together gather once and reduce once."""
    model = sharded_network(engine, world, comm_fusion=comm_fusion)
    gathered, reduced = messages(engine, world, model)
    batches = [batch(world, seed=step) for step in range(3)]
    model.set_reshard_after_forward(False)
    model.set_reshard_after_backward(False)
    model.set_requires_gradient_sync(False)
    assert micro_step(world, model, batches[0]) == (gathered, [])
    assert micro_step(world, model, batches[1]) == ([], [])
    model.set_requires_gradient_sync(True)
    assert micro_step(world, model, batches[2]) == ([], reduced)
    expected = parts(world, single_card_gradients(world, *batches))
    assert_close(gradients(engine, model), expected, ledger["fsdp_1d_fp32"], what="accumulated gradients")


@contract("FS-1-07")
def test_sync_off_is_remembered_by_the_whole_tree(engine, world):
    """Off at the root holds back every layer; on again at one layer reduces that layer alone."""
    model = sharded_network(engine, world)
    model.set_requires_gradient_sync(False)
    model.layers[1].set_requires_gradient_sync(True)
    loss(model, mine(world, batch(world))).backward()
    assert sorted(gradients(engine, model)) == ["layers.1.bias", "layers.1.weight"]
    assert len(pending_gradients(engine, model)) == 4


@contract("FS-1-07")
def test_sync_takes_only_flags(engine, world):
    """Anything but a bool is refused."""
    with pytest.raises(ValueError, match="requires_grad_sync"):
        sharded_network(engine, world).set_requires_gradient_sync(0)

"""When parameters are full and when they are shards: settings changed between steps, gathering by hand."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from torch import nn

from hyper_parallel_tests.domains.fully_shard.setting import (
    WIDTH,
    batch,
    either_fusion,
    full_now,
    group_bytes,
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
from hyper_parallel_tests.harness import assert_close, contract, in_clean_process, trace

sgd = partial(torch.optim.SGD, lr=0.05)


@contract("FSDP-L1-01")
@either_fusion
def test_dynamic_reshard_control(engine, world, comm_fusion):
    """Reshard settings changed between steps decide what forward and backward leave behind."""
    full = single_card_parameters(world)
    model = sharded_network(engine, world, comm_fusion=comm_fusion)
    rows = mine(world, batch(world))

    model.set_reshard_after_forward(False)
    value = loss(model, rows)
    assert numels(resident(engine, model)) == numels(full)
    value.backward()
    assert numels(resident(engine, model)) == numels(parts(world, full))

    model.set_reshard_after_forward(True)
    value = loss(model, rows)
    assert numels(resident(engine, model)) == numels(parts(world, full))

    model.set_reshard_after_backward(False)
    value.backward()
    assert numels(resident(engine, model)) == numels(full)

    model.set_reshard_after_backward(True)
    loss(model, rows).backward()
    assert numels(resident(engine, model)) == numels(parts(world, full))


@contract("FSDP-L1-01")
@either_fusion
@pytest.mark.parametrize("reshard", [True, False], ids=["resharded", "kept"])
def test_dynamic_reshard_control_starts_from_the_argument(engine, world, reshard, comm_fusion):
    """reshard_after_forward of the call decides what forward leaves behind, and with it what backward gathers."""
    full = single_card_parameters(world)
    model = sharded_network(engine, world, reshard_after_forward=reshard, comm_fusion=comm_fusion)
    value = loss(model, mine(world, batch(world)))
    assert full_now(engine, model) == (set() if reshard else set(full))
    with trace.collectives() as sent:
        value.backward()
    groups = len(group_bytes(engine, model))
    assert len(sent.of("all_gather")) == (groups if reshard else 0)
    assert full_now(engine, model) == set()


@contract("FSDP-L1-01")
def test_dynamic_reshard_control_reaches_one_module(engine, world):
    """With recurse=False a setting reaches the module's own parameters and not its children's."""
    model = nn.Sequential(sharded_network(engine, world), nn.Linear(WIDTH, 2).to(world.device))
    engine.fully_shard(model, mesh=world.mesh(dp=world.size))
    model.set_reshard_after_forward(False, recurse=False)
    model(mine(world, batch(world)).inputs)
    assert full_now(engine, model) == {"1.weight", "1.bias"}


@contract("FSDP-L1-01")
@pytest.mark.parametrize("setter", ["set_reshard_after_forward", "set_reshard_after_backward"])
def test_dynamic_reshard_control_takes_only_flags(engine, world, setter):
    """Anything but a bool is refused, instead of being kept as a truth value of some kind."""
    with pytest.raises(ValueError, match="must be a bool|should be a bool"):
        getattr(sharded_network(engine, world), setter)(1)


@contract("FSDP-L1-01")
@either_fusion
def test_dynamic_reshard_control_changes_no_value(engine, world, ledger, comm_fusion):
    """While the settings change, losses over steps of two micro-batches stay those of a single card."""
    model = sharded_network(engine, world, comm_fusion=comm_fusion)
    optimizer = sgd(model.parameters())
    batches = [[batch(world, seed=10 * step + micro) for micro in range(2)] for step in range(4)]
    expected = in_clean_process(losses_of_micro_batches, world, network(world), batches)
    for step, (keep_after_forward, keep_after_backward) in enumerate(
        [(False, False), (True, False), (False, True), (True, True)]
    ):
        model.set_reshard_after_forward(not keep_after_forward)
        for micro in range(2):
            # Parameters may stay full up to the next micro-batch, not past the update.
            model.set_reshard_after_backward(micro == 1 or not keep_after_backward)
            value, what = loss(model, mine(world, batches[step][micro])), f"loss at step {step}, micro-batch {micro}"
            assert_close(value, expected[step][micro], ledger["fsdp_1d_fp32"], what=what)
            value.backward()
        optimizer.step()
        optimizer.zero_grad()


def losses_of_micro_batches(world, model, batches) -> list[list[torch.Tensor]]:
    """This rank's part of the loss of each micro-batch of each step, on one card that trains on all rows."""
    optimizer, losses = sgd(model.parameters()), []
    for step in batches:
        losses.append([])
        for rows in step:
            losses[-1].append(loss(model, mine(world, rows)).detach())
            loss(model, rows).backward()
        optimizer.step()
        optimizer.zero_grad()
    return losses


@contract("FSDP-L1-05")
@either_fusion
def test_manual_reshard_unshard_lifecycle(engine, world, ledger, comm_fusion):
    """unshard and reshard can each be called twice, and leave full parameters and shards behind."""
    full = single_card_parameters(world)
    model = engine.fully_shard(network(world), mesh=world.mesh(dp=world.size), comm_fusion=comm_fusion)
    for _ in range(2):
        for _ in range(2):
            model.unshard()
            assert_close(resident(engine, model), full, ledger["exact"], what="the gathered parameters")
        for _ in range(2):
            model.reshard()
            assert_close(resident(engine, model), parts(world, full), ledger["exact"], what="the shards")


@contract("FSDP-L1-05")
@either_fusion
def test_manual_reshard_unshard_lifecycle_gathers_anew(engine, world, ledger, comm_fusion):
    """After reshard the next unshard gathers what the shards are by then, not what they were."""
    model = engine.fully_shard(network(world), mesh=world.mesh(dp=world.size), comm_fusion=comm_fusion)
    model.unshard()
    model.reshard()
    for shard in shards(engine, model).values():
        shard.mul_(3)
    model.unshard()
    tripled = {name: 3 * parameter for name, parameter in single_card_parameters(world).items()}
    assert_close(resident(engine, model), tripled, ledger["exact"], what="the gathered parameters")


@contract("FSDP-L1-05")
@either_fusion
def test_manual_reshard_unshard_lifecycle_async(engine, world, ledger, comm_fusion):
    """An asynchronous unshard leaves shards in place until its handle is waited for, then full parameters."""
    full = single_card_parameters(world)
    model = engine.fully_shard(network(world), mesh=world.mesh(dp=world.size), comm_fusion=comm_fusion)
    handle = model.unshard(async_op=True)
    assert numels(resident(engine, model)) == numels(parts(world, full))
    handle.wait()
    assert_close(resident(engine, model), full, ledger["exact"], what="the gathered parameters")
    handle.wait()
    model.reshard()
    assert_close(resident(engine, model), parts(world, full), ledger["exact"], what="the shards")


@contract("FSDP-L1-05")
@either_fusion
def test_manual_reshard_unshard_lifecycle_ends_a_pending_unshard(engine, world, ledger, comm_fusion):
    """reshard ends an unshard that nobody waited for: the next one gathers what the shards are by then."""
    model = engine.fully_shard(network(world), mesh=world.mesh(dp=world.size), comm_fusion=comm_fusion)
    model.unshard(async_op=True)
    model.reshard()
    for shard in shards(engine, model).values():
        shard.mul_(3)
    model.unshard()
    tripled = {name: 3 * parameter for name, parameter in single_card_parameters(world).items()}
    assert_close(resident(engine, model), tripled, ledger["exact"], what="the gathered parameters")


@contract("FSDP-L1-05")
def test_manual_reshard_unshard_lifecycle_is_the_modules_own(engine, world):
    """unshard and reshard reach the module's own call, not other modules'."""
    model = sharded_network(engine, world)
    model.layers[0].unshard()
    assert full_now(engine, model) == {"layers.0.weight", "layers.0.bias"}
    model.reshard()
    assert full_now(engine, model) == {"layers.0.weight", "layers.0.bias"}
    model.layers[0].reshard()
    assert full_now(engine, model) == set()

"""load_state_dict into a wrapped model in mid-training, and what trains on after it."""

from __future__ import annotations

from functools import partial

import pytest
import torch

from hyper_parallel_tests.domains.fully_shard.setting import (
    WIDTH,
    batch,
    either_fusion,
    full_now,
    loss,
    mine,
    network,
    parts,
    sharded_network,
    shards,
    wrap,
)
from hyper_parallel_tests.harness import assert_close, contract, in_clean_process
from hyper_parallel_tests.models.mlp import mlp

OPTIMIZERS = {
    "sgd_momentum": partial(torch.optim.SGD, lr=0.05, momentum=0.9),
    "adamw": partial(torch.optim.AdamW, lr=0.05),
}


def other_network(world):
    """The network with weights of another seed."""
    return mlp(WIDTH, seed=1).to(world.device)


def donor_state(engine, world):
    """Those weights as the state_dict of a wrapped network."""
    donor = other_network(world)
    return wrap(engine, donor, donor.layers, world.mesh(dp=world.size)).state_dict()


def train_around_load(world, optimizer):
    """Parameters of the network on one card after a step, the load of those weights and two more steps."""
    model = network(world)
    optimizer = optimizer(model.parameters())
    step(model, optimizer, batch(world, seed=0))
    model.load_state_dict(other_network(world).state_dict())
    for seed in (2, 3):
        step(model, optimizer, batch(world, seed=seed))
    return dict(model.named_parameters())


def step(model, optimizer, rows) -> None:
    loss(model, rows).backward()
    optimizer.step()
    optimizer.zero_grad()


@contract("FS-1-04")
@pytest.mark.parametrize("full", [False, True], ids=["while_sharded", "while_full"])
@either_fusion
@pytest.mark.parametrize("optimizer", OPTIMIZERS.values(), ids=OPTIMIZERS)
def test_training_goes_on_after_load_state_dict(engine, world, ledger, optimizer, comm_fusion, full):
    """The optimizer holds the same objects, shards are the loaded ones, and the next steps are the single card's."""
    model = sharded_network(engine, world, comm_fusion=comm_fusion)
    ours = optimizer(model.parameters())
    step(model, ours, mine(world, batch(world, seed=0)))
    before = dict(model.named_parameters())
    if full:
        model.set_reshard_after_forward(False)
        model(mine(world, batch(world)).inputs)
        assert full_now(engine, model) == set(before)

    model.load_state_dict(donor_state(engine, world))
    assert full_now(engine, model) == set()
    assert [id(one) for one in model.parameters()] == [id(one) for one in before.values()]
    assert [id(one) for one in ours.param_groups[0]["params"]] == [id(one) for one in before.values()]
    loaded = parts(world, dict(other_network(world).named_parameters()))
    assert_close(shards(engine, model), loaded, ledger["exact"], what="shards")

    rows = mine(world, batch(world, seed=1))
    expected = in_clean_process(other_network(world), rows.inputs)
    assert_close(model(rows.inputs), expected, ledger["fsdp_1d_fp32"], what="the next forward's output")
    for seed in (2, 3):
        step(model, ours, mine(world, batch(world, seed=seed)))
    trained = parts(world, in_clean_process(train_around_load, world, optimizer))
    assert_close(shards(engine, model), trained, ledger["fsdp_1d_fp32"], what="parameters after two more steps")


@contract("FS-1-04")
def test_state_dict_that_does_not_fit_is_refused(engine, world):
    """A missing or an unknown key, or another shape, is an error that names the key, as in a plain module."""
    model = sharded_network(engine, world)
    good = donor_state(engine, world)
    lacking = {name: value for name, value in good.items() if name != "layers.1.bias"}
    unknown = good | {"layers.9.bias": good["layers.1.bias"]}
    misshapen = good | {"layers.1.weight": good["layers.1.bias"]}
    for bad, culprit in ((lacking, "layers.1.bias"), (unknown, "layers.9.bias"), (misshapen, "layers.1.weight")):
        with pytest.raises(Exception, match=culprit):
            model.load_state_dict(bad)

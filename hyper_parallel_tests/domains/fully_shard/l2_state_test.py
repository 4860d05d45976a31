"""Training that is saved, loaded into a new model and optimizer, and continued, against training without a break."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import pytest
import torch
import torch.distributed as dist
from torch.utils._pytree import tree_map_only

from hyper_parallel_tests.domains.fully_shard.setting import batch, loss, mine, network, shards, wrap
from hyper_parallel_tests.harness import assert_close, assert_equal, assert_parity, contract, mean_over_ranks, train
from hyper_parallel_tests.models.mlp import mlp

WIDTH, BEFORE, AFTER = 7, 2, 3
OPTIMIZERS = {
    "sgd_momentum": partial(torch.optim.SGD, lr=0.01, momentum=0.9),
    "adamw": partial(torch.optim.AdamW, lr=0.01, weight_decay=0.1),
}

each_optimizer = pytest.mark.parametrize("optimizer", OPTIMIZERS.values(), ids=OPTIMIZERS)
either_fusion = pytest.mark.parametrize("comm_fusion", [False, True], ids=["single", "fused"])


def batches(world):
    return [batch(world, seed=step, width=WIDTH) for step in range(BEFORE + AFTER)]


def sharded(engine, world, seed, comm_fusion):
    """The network with the weights of a seed, so that a new one must get everything from the file."""
    model = mlp(WIDTH, seed=seed).to(world.device)
    return wrap(engine, model, model.layers, world.mesh(dp=world.size), comm_fusion=comm_fusion)


def run(world, model, optimizer, rows):
    return train(model, [mine(world, one) for one in rows], loss, optimizer=optimizer, average=mean_over_ranks)


def without_break(world, make):
    """The steps after the break as a single card takes them, without one."""
    track = train(network(world, WIDTH), batches(world), loss, optimizer=make)
    return replace(track, start=track.steps[BEFORE - 1].params, steps=track.steps[BEFORE:])


class FullState:
    """One file of whole tensors that rank 0 writes and every rank reads."""

    def __init__(self, engine, world, folder):
        self.engine, self.world, self.file = engine, world, folder / "full.pt"

    def save(self, model, optimizer):
        options = self.engine.StateDictOptions(full_state_dict=True, cpu_offload=True)
        state = {
            "model": self.engine.get_model_state_dict(model, options=options),
            "optimizer": self.engine.get_optim_state_dict(model, optimizer, options=options),
        }
        if self.world.rank == 0:
            torch.save(state, self.file)
        dist.barrier()

    def load(self, model, optimizer):
        options = self.engine.StateDictOptions(full_state_dict=True)
        state = torch.load(self.file)
        self.engine.set_model_state_dict(model, state["model"], options=options)
        self.engine.set_optim_state_dict(model, optimizer, state["optimizer"], options=options)


class ShardedState:
    """A file a rank of what it holds itself."""

    def __init__(self, engine, world, folder):
        self.engine, self.file = engine, folder / f"rank{world.rank}.pt"

    def save(self, model, optimizer):
        torch.save(tree_map_only(torch.Tensor, part_of, self.state(model, optimizer)), self.file)

    def load(self, model, optimizer):
        # Without a step an optimizer has no state yet; asking for it gives what the file can be copied into.
        state, saved = self.state(model, optimizer), torch.load(self.file)
        state["optimizer"]["param_groups"] = saved["optimizer"]["param_groups"]
        for name, held in saved["model"].items():
            part_of(state["model"][name]).copy_(held)
        for name, held in saved["optimizer"]["state"].items():
            for key, value in held.items():
                part_of(state["optimizer"]["state"][name][key]).copy_(value)
        self.engine.set_model_state_dict(model, state["model"])
        self.engine.set_optim_state_dict(model, optimizer, state["optimizer"])

    def state(self, model, optimizer):
        return {
            "model": self.engine.get_model_state_dict(model),
            "optimizer": self.engine.get_optim_state_dict(model, optimizer),
        }


def part_of(tensor):
    """This rank's part of a distributed tensor; a plain one is its own."""
    return tensor.to_local().detach() if hasattr(tensor, "to_local") else tensor.detach()


@contract("FS-2-04")
@pytest.mark.parametrize("form", [FullState, ShardedState])
@each_optimizer
@either_fusion
def test_saved_training_continues_as_if_uninterrupted(engine, world, ledger, artifacts, form, optimizer, comm_fusion):
    """Loaded into a new model and optimizer, training goes on to the bit, and as the single card's."""
    model = sharded(engine, world, 0, comm_fusion)
    kept = optimizer(model.parameters())
    run(world, model, kept, batches(world)[:BEFORE])
    form(engine, world, artifacts).save(model, kept)

    renewed = sharded(engine, world, 1, comm_fusion)
    state = optimizer(renewed.parameters())
    form(engine, world, artifacts).load(renewed, state)
    continued = run(world, renewed, state, batches(world)[BEFORE:])

    assert_parity(continued, without_break(world, optimizer), ledger["fsdp_1d_fp32"])
    assert_parity(continued, run(world, model, kept, batches(world)[BEFORE:]), ledger["exact"])


@contract("FS-2-04")
def test_full_state_is_the_ordinary_models(engine, world, ledger):
    """After training the full state has the ordinary model's keys and values, on rank 0 alone if on the CPU."""
    model = sharded(engine, world, 0, comm_fusion=False)
    optimizer = OPTIMIZERS["adamw"](model.parameters())
    run(world, model, optimizer, batches(world)[:BEFORE])
    ordinary = network(world, WIDTH)
    train(ordinary, batches(world)[:BEFORE], loss, optimizer=OPTIMIZERS["adamw"])
    everywhere = engine.get_model_state_dict(model, options=engine.StateDictOptions(full_state_dict=True))
    assert list(everywhere) == list(ordinary.state_dict())
    assert_close(everywhere, ordinary.state_dict(), ledger["fsdp_1d_fp32"], what="full state")
    on_cpu = engine.StateDictOptions(full_state_dict=True, cpu_offload=True)
    assert bool(engine.get_model_state_dict(model, options=on_cpu)) is (world.rank == 0)


@contract("FS-2-04")
def test_sharded_state_is_what_the_rank_holds(engine, world):
    """Without gathering, each rank's state is its own shards, not a whole tensor and not another rank's."""
    model = sharded(engine, world, 0, comm_fusion=False)
    held = {name: part_of(one) for name, one in engine.get_model_state_dict(model).items()}
    assert_equal(held, shards(engine, model), what="sharded state")

"""Training that is saved, loaded into a new model and optimizer, and continued, against training without a break."""

from __future__ import annotations

import copy
from dataclasses import replace
from functools import partial

import pytest
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils._pytree import tree_map_only

from hyper_parallel_tests.domains.fully_shard.setting import (
    WIDTHS,
    batch,
    either_width,
    loss,
    mine,
    network,
    plain_or_demanding,
    shards,
    wrap,
)
from hyper_parallel_tests.domains.fully_shard.structures import Normed, Tied
from hyper_parallel_tests.harness import (
    assert_bitwise_repeatable,
    assert_close,
    assert_equal,
    assert_parity,
    contract,
    mean_over_ranks,
    train,
    train_baseline,
)
from hyper_parallel_tests.models.mlp import mlp
from hyper_parallel_tests.models.seeding import build

WIDTH, BEFORE, AFTER = WIDTHS["odd"], 2, 3
OPTIMIZERS = {
    "sgd_momentum": partial(torch.optim.SGD, lr=0.01, momentum=0.9),
    "adamw": partial(torch.optim.AdamW, lr=0.01, weight_decay=0.1),
}
KINDS = {"tied": Tied, "normed": Normed}

each_optimizer = pytest.mark.parametrize("optimizer", OPTIMIZERS.values(), ids=OPTIMIZERS)
each_kind = pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)


def batches(world, width=WIDTH):
    return [batch(world, seed=step, width=width) for step in range(BEFORE + AFTER)]


def sharded(engine, world, seed, comm_fusion, width=WIDTH):
    """The network with the weights of a seed, so that a new one must get everything from the file."""
    model = mlp(width, seed=seed).to(world.device)
    return wrap(engine, model, model.layers, world.mesh(dp=world.size), comm_fusion=comm_fusion)


def made(world, kind, seed):
    return build(lambda: kind(WIDTH), seed).to(world.device)


def sharded_kind(engine, world, kind, seed):
    """Biases and what else is no matrix are kept whole on every rank."""
    model = made(world, kind, seed)
    whole = {parameter for parameter in model.parameters() if parameter.ndim == 1}
    mesh = world.mesh(dp=world.size)
    return wrap(engine, model, [model.middle], mesh, comm_fusion=True, replicate_params=whole)


def run(world, model, optimizer, rows):
    return train(model, [mine(world, one) for one in rows], loss, optimizer=optimizer, average=mean_over_ranks)


def without_break(world, make, width):
    """The steps after the break as a single card takes them, without one."""
    return after_the_break(train_baseline(network(world, width), batches(world, width), loss, optimizer=make))


def after_the_break(track):
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


class OwnState:
    """What module and optimizer themselves say on each rank, in memory."""

    def __init__(self, engine, world, folder):
        self.module, self.optimizer = {}, {}

    def save(self, model, optimizer):
        self.module, self.optimizer = model.state_dict(), copy.deepcopy(optimizer.state_dict())

    def load(self, model, optimizer):
        model.load_state_dict(self.module)
        optimizer.load_state_dict(self.optimizer)


def part_of(tensor):
    """This rank's part of a distributed tensor; a plain one is its own."""
    return tensor.to_local().detach() if hasattr(tensor, "to_local") else tensor.detach()


each_form = pytest.mark.parametrize("form", [FullState, ShardedState, OwnState])


@contract("FS-2-04")
@each_form
@each_optimizer
@plain_or_demanding
def test_saved_training_continues_as_if_uninterrupted(
    engine, world, ledger, artifacts, form, optimizer, width, comm_fusion
):
    """Loaded into a new model and optimizer, training goes on to the bit, and as the single card's."""
    saved, rows = form(engine, world, artifacts), batches(world, width)
    model = sharded(engine, world, 0, comm_fusion, width)
    kept = optimizer(model.parameters())
    run(world, model, kept, rows[:BEFORE])
    saved.save(model, kept)

    renewed = sharded(engine, world, 1, comm_fusion, width)
    state = optimizer(renewed.parameters())
    saved.load(renewed, state)
    continued = run(world, renewed, state, rows[BEFORE:])

    assert_parity(continued, without_break(world, optimizer, width), ledger["fsdp_1d_fp32"])
    uninterrupted = run(world, model, kept, rows[BEFORE:])
    assert_parity(continued, uninterrupted, ledger["exact"], own_because="loading is to change no bit of it")


@contract("FS-2-04")
@each_form
@each_kind
def test_saved_training_of_other_networks_continues_too(engine, world, ledger, artifacts, form, kind):
    """With a tied weight, buffers, and parameters kept whole, training goes on as DDP's does without a break."""
    adamw, saved = OPTIMIZERS["adamw"], form(engine, world, artifacts)
    model, renewed = sharded_kind(engine, world, kind, 0), sharded_kind(engine, world, kind, 1)
    kept, state = adamw(model.parameters()), adamw(renewed.parameters())
    run(world, model, kept, batches(world)[:BEFORE])
    saved.save(model, kept)
    buffers = {name: buffer.clone() for name, buffer in model.named_buffers()}
    saved.load(renewed, state)
    # The file of the full state is rank 0's, and so are the buffers in it.
    if form is not FullState or world.rank == 0:
        assert_equal(dict(renewed.named_buffers()), buffers, what="buffers")
    continued = run(world, renewed, state, batches(world)[BEFORE:])
    whole = train_baseline(
        made(world, kind, 0),
        [mine(world, one) for one in batches(world)],
        loss,
        wrap=partial(DDP, broadcast_buffers=False),
        optimizer=adamw,
        average=mean_over_ranks,
    )
    assert_parity(continued, after_the_break(whole), ledger["fsdp_1d_fp32"])


def hold_to_what_was_taken(engine, world, model, width=WIDTH):
    """Takes the full state, trains on, and holds the state to what it was."""
    optimizer = OPTIMIZERS["adamw"](model.parameters())
    run(world, model, optimizer, batches(world, width)[:BEFORE])
    options = engine.StateDictOptions(full_state_dict=True, cpu_offload=True)
    state = engine.get_model_state_dict(model, options=options)
    taken = {name: one.clone() for name, one in state.items()}
    run(world, model, optimizer, batches(world, width)[BEFORE:])
    assert_equal(state, taken, what="full state after further steps")


@contract("FS-2-04")
@plain_or_demanding
def test_full_state_on_the_cpu_does_not_follow_later_training(engine, world, width, comm_fusion):
    """What was taken to be saved is a copy."""
    hold_to_what_was_taken(engine, world, sharded(engine, world, 0, comm_fusion, width), width)


@contract("FS-2-04")
@each_kind
def test_full_state_on_the_cpu_does_not_follow_whole_parameters_and_buffers(engine, world, kind):
    """What no rank has to gather is copied too."""
    hold_to_what_was_taken(engine, world, sharded_kind(engine, world, kind, 0))


@contract("FS-2-04")
@each_form
def test_saved_training_repeats_bit_by_bit(engine, world, artifacts, form):
    """Saving, loading and going on, again in the same process, give the same bits."""

    def again():
        saved = form(engine, world, artifacts)
        model, renewed = sharded(engine, world, 0, True), sharded(engine, world, 1, True)
        kept, state = (OPTIMIZERS["adamw"](one.parameters()) for one in (model, renewed))
        run(world, model, kept, batches(world)[:BEFORE])
        saved.save(model, kept)
        saved.load(renewed, state)
        return run(world, renewed, state, batches(world)[BEFORE:]).steps

    assert_bitwise_repeatable(again)


@contract("FS-2-04")
@either_width
def test_full_state_is_the_ordinary_models(engine, world, ledger, width):
    """After training the full state has the ordinary model's keys and values, on rank 0 alone if on the CPU."""
    model, adamw = sharded(engine, world, 0, False, width), OPTIMIZERS["adamw"]
    run(world, model, adamw(model.parameters()), batches(world, width)[:BEFORE])
    ordinary = network(world, width)
    trained = train_baseline(ordinary, batches(world, width)[:BEFORE], loss, optimizer=adamw).steps[-1].params
    everywhere = engine.get_model_state_dict(model, options=engine.StateDictOptions(full_state_dict=True))
    assert list(everywhere) == list(ordinary.state_dict())
    assert_close(everywhere, trained, ledger["fsdp_1d_fp32"], what="full state")
    on_cpu = engine.StateDictOptions(full_state_dict=True, cpu_offload=True)
    assert bool(engine.get_model_state_dict(model, options=on_cpu)) is (world.rank == 0)


@contract("FS-2-04")
@either_width
def test_sharded_state_is_what_the_rank_holds(engine, world, width):
    """Without gathering, each rank's state is its own shards, not a whole tensor and not another rank's."""
    model = sharded(engine, world, 0, False, width)
    held = {name: part_of(one) for name, one in engine.get_model_state_dict(model).items()}
    assert_equal(held, shards(engine, model), what="sharded state")

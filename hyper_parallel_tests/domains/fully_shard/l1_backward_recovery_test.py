"""A forward or a backward that an exception ends half-way, and the step after it."""

from __future__ import annotations

from functools import partial

import pytest
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP

from hyper_parallel_tests.domains.fully_shard.setting import (
    batch,
    either_fusion,
    full_now,
    gradients,
    loss,
    mine,
    network,
    parts,
    pending_gradients,
    sharded_network,
    shards,
)
from hyper_parallel_tests.harness import assert_close, contract, trace, train_baseline

sgd = partial(torch.optim.SGD, lr=0.1)

each_layer = pytest.mark.parametrize("layer", [0, 1, 2], ids=["first_layer", "middle_layer", "last_layer"])


class Interrupted(Exception):
    """What ends a pass half-way, on all ranks alike."""


def interrupt(*_: object) -> None:
    raise Interrupted


def interrupted_forward(model, rows, layer: int) -> None:
    """A forward that ends inside one layer, which has its parameters by then."""
    handle = model.layers[layer].register_forward_pre_hook(interrupt)
    with pytest.raises(Interrupted):
        model(rows.inputs)
    handle.remove()


def interrupted_backward(model, rows, layer: int) -> None:
    """A backward that ends where the gradient reaches one layer's output."""

    def end_here(_module, _inputs, output: torch.Tensor) -> None:
        output.register_hook(interrupt)

    handle = model.layers[layer].register_forward_hook(end_here)
    value = loss(model, rows)
    handle.remove()
    with pytest.raises(Interrupted):
        value.backward()


def assert_next_steps_are_right(engine, world, ledger, model, messages: int) -> None:
    """Two steps of training reduce as often as they should, and are DDP's."""
    batches = [mine(world, batch(world, seed=10 + step)) for step in range(2)]
    ddp = train_baseline(network(world), batches, loss, wrap=DDP, optimizer=sgd)
    optimizer = sgd(model.parameters())
    for step, (rows, theirs) in enumerate(zip(batches, ddp.steps, strict=True)):
        value = loss(model, rows)
        assert_close(value, theirs.loss, ledger["fsdp_1d_fp32"], what=f"loss in step {step} after it")
        with trace.collectives() as sent:
            value.backward()
        assert len(sent.of("reduce_scatter")) == messages
        assert full_now(engine, model) == set()
        assert pending_gradients(engine, model) == {}
        whole = parts(world, theirs.grads)
        assert_close(gradients(engine, model), whole, ledger["fsdp_1d_fp32"], what=f"gradients in step {step} after it")
        optimizer.step()
        optimizer.zero_grad()
    updated = parts(world, ddp.steps[-1].params)
    assert_close(shards(engine, model), updated, ledger["fsdp_1d_fp32"], what="parameters after them")


def assert_refused_in_step(world, error: RuntimeError, sent) -> None:
    """Every rank was refused after the same messages: none failed because the others sent something else."""
    assert not isinstance(error, dist.DistError), f"not refused, but out of step: {error}"
    ranks = [None] * world.size
    dist.all_gather_object(ranks, sent.lines())
    assert ranks == [sent.lines()] * world.size


@contract("FS-1-03")
@either_fusion
@each_layer
@pytest.mark.parametrize("interrupted", [interrupted_forward, interrupted_backward], ids=["forward", "backward"])
def test_training_goes_on_after_an_exception(engine, world, ledger, interrupted, layer, comm_fusion):
    """After reset_iter_state and zero_grad nothing of an interrupted step is left, and the next ones are right."""
    model = sharded_network(engine, world, comm_fusion=comm_fusion)
    loss(model, mine(world, batch(world))).backward()
    model.zero_grad()
    interrupted(model, mine(world, batch(world, seed=1)), layer)
    model.reset_iter_state()
    model.zero_grad()
    assert full_now(engine, model) == set()
    assert gradients(engine, model) == {}
    assert pending_gradients(engine, model) == {}
    assert_next_steps_are_right(engine, world, ledger, model, messages=3 if comm_fusion else 6)


@contract("FS-1-03")
@either_fusion
@pytest.mark.parametrize("interrupted", [interrupted_forward, interrupted_backward], ids=["forward", "backward"])
def test_exception_does_no_silent_damage(engine, world, ledger, interrupted, comm_fusion):
    """Without reset_iter_state the steps after an exception are right or refused, never silently wrong."""
    model = sharded_network(engine, world, comm_fusion=comm_fusion)
    loss(model, mine(world, batch(world))).backward()
    model.zero_grad()
    interrupted(model, mine(world, batch(world, seed=1)), 1)
    model.zero_grad()
    sent = trace.collectives()
    try:
        with sent:
            assert_next_steps_are_right(engine, world, ledger, model, messages=3 if comm_fusion else 6)
    except RuntimeError as error:
        assert_refused_in_step(world, error, sent)

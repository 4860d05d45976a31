"""Networks that are no plain chain: shared, reused and unused parts, buffers, lists, several forwards."""

from __future__ import annotations

from functools import partial

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from hyper_parallel_tests.domains.fully_shard.setting import mine, wrap
from hyper_parallel_tests.harness import (
    assert_bitwise_repeatable,
    assert_close,
    assert_parity,
    contract,
    mean_over_ranks,
    train,
)
from hyper_parallel_tests.models.mlp import mlp_batch
from hyper_parallel_tests.models.seeding import build

# Uneven on two ranks; the one row of the other width leaves the second rank empty shards.
WIDTHS = {"odd": 7, "empty_shards": 1}
ROWS = 8
STEPS = 3
sgd = partial(torch.optim.SGD, lr=0.1, momentum=0.9)

either_fusion = pytest.mark.parametrize("comm_fusion", [False, True], ids=["single", "fused"])
each_width = pytest.mark.parametrize("width", WIDTHS.values(), ids=WIDTHS)


class Tied(nn.Module):
    """The first and the last layer are one matrix."""

    def __init__(self, width):
        super().__init__()
        self.first, self.middle = nn.Linear(width, width, bias=False), nn.Linear(width, width)
        self.last = nn.Linear(width, width)
        self.last.weight = self.first.weight

    def forward(self, inputs):
        return self.last(torch.tanh(self.middle(torch.tanh(self.first(inputs)))))


class Twice(nn.Module):
    """One wrapped layer runs twice in each forward."""

    def __init__(self, width):
        super().__init__()
        self.middle, self.last = nn.Linear(width, width), nn.Linear(width, width)

    def forward(self, inputs):
        return self.last(torch.tanh(self.middle(torch.tanh(self.middle(inputs)))))


class Sometimes(nn.Module):
    """The wrapped middle layer takes part in every other step, and `never` in none."""

    def __init__(self, width):
        super().__init__()
        self.first, self.middle = nn.Linear(width, width), nn.Linear(width, width)
        self.never, self.calls = nn.Linear(width, width), 0

    def forward(self, inputs):
        hidden = torch.tanh(self.first(inputs))
        self.calls += 1
        return self.middle(hidden) if self.calls % 2 else hidden


class Normed(nn.Module):
    """Batch normalisation, with running statistics as buffers."""

    def __init__(self, width):
        super().__init__()
        self.middle, self.norm, self.last = nn.Linear(width, width), nn.BatchNorm1d(width), nn.Linear(width, width)

    def forward(self, inputs):
        return self.last(torch.tanh(self.norm(self.middle(inputs))))


NETWORKS = {"tied": Tied, "used_twice": Twice, "used_sometimes": Sometimes}


def squared_error(model, batch):
    return F.mse_loss(model(batch.inputs), batch.targets)


def squared_error_of_two_forwards(model, batch):
    """Two forwards, then one backward through both."""
    halves = [squared_error(model, batch.part(half, 2)) for half in range(2)]
    return sum(halves) / 2


def made(world, kind, width):
    return build(lambda: kind(width), seed=0).to(world.device)


def sharded(engine, world, kind, width, comm_fusion):
    """The middle layer by itself, all else with the root."""
    model = made(world, kind, width)
    return wrap(engine, model, [model.middle], world.mesh(dp=world.size), comm_fusion=comm_fusion)


def batches(world, width):
    return [mlp_batch(step, ROWS * world.size, width).to(world.device) for step in range(STEPS)]


def run(world, model, width, loss=squared_error):
    rows = [mine(world, one) for one in batches(world, width)]
    return train(model, rows, loss, optimizer=sgd, average=mean_over_ranks)


def run_on_one_card(world, kind, width, loss=squared_error):
    return train(made(world, kind, width), batches(world, width), loss, optimizer=sgd)


@contract("FS-2-05")
@pytest.mark.parametrize("kind", NETWORKS.values(), ids=NETWORKS)
@each_width
@either_fusion
def test_shared_reused_and_unused_parts_train(engine, world, ledger, kind, width, comm_fusion):
    """Tied weights, a layer that runs twice, and layers without a gradient in a step are the single card's."""
    candidate = run(world, sharded(engine, world, kind, width, comm_fusion), width)
    assert_parity(candidate, run_on_one_card(world, kind, width), ledger["fsdp_1d_fp32"])


@contract("FS-2-05")
@either_fusion
def test_unused_parts_get_no_gradient(engine, world, comm_fusion):
    """What took no part in a step has no gradient after it, not zeros that an optimizer would act on."""
    width = WIDTHS["odd"]
    model = sharded(engine, world, Sometimes, width, comm_fusion)
    rows = mine(world, batches(world, width)[0])
    for unused in ({"never.weight", "never.bias"}, {"never.weight", "never.bias", "middle.weight", "middle.bias"}):
        model.zero_grad()
        squared_error(model, rows).backward()
        assert {name for name, one in model.named_parameters() if one.grad is None} == unused


@contract("FS-2-05")
@either_fusion
def test_two_forwards_before_one_backward(engine, world, ledger, comm_fusion):
    """Gradients of both forwards are there, each once."""
    width = WIDTHS["odd"]
    model = sharded(engine, world, Twice, width, comm_fusion)
    candidate = run(world, model, width, squared_error_of_two_forwards)
    baseline = run_on_one_card(world, Twice, width, squared_error_of_two_forwards)
    assert_parity(candidate, baseline, ledger["fsdp_1d_fp32"])


@contract("FS-2-05")
@either_fusion
def test_buffers_are_each_ranks_own(engine, world, ledger, comm_fusion):
    """Batch statistics are of the rank's own rows, as under DDP without broadcasts, and stay plain tensors."""
    width = WIDTHS["odd"]
    model = sharded(engine, world, Normed, width, comm_fusion)
    ddp = DistributedDataParallel(made(world, Normed, width), broadcast_buffers=False)
    candidate, baseline = run(world, model, width), run(world, ddp, width)
    assert_parity(candidate, baseline, ledger["fsdp_1d_fp32"])
    buffers, expected = dict(model.named_buffers()), dict(ddp.module.named_buffers())
    assert {type(one) for one in buffers.values()} == {torch.Tensor}
    assert_close(buffers, expected, ledger["fsdp_1d_fp32"], what="buffers")


@contract("FS-2-05")
@either_fusion
def test_modules_of_a_list_train(engine, world, ledger, comm_fusion):
    """Layers wrapped by one call with a list, as one unit or each by itself, are the single card's."""
    width = WIDTHS["odd"]
    model, mesh = made(world, Normed, width), world.mesh(dp=world.size)
    engine.fully_shard([model.middle, model.last], mesh=mesh, comm_fusion=comm_fusion)
    engine.fully_shard(model, mesh=mesh, comm_fusion=comm_fusion)
    ddp = DistributedDataParallel(made(world, Normed, width), broadcast_buffers=False)
    assert_parity(run(world, model, width), run(world, ddp, width), ledger["fsdp_1d_fp32"])


@contract("FS-2-05")
@pytest.mark.parametrize("kind", NETWORKS.values(), ids=NETWORKS)
def test_training_of_such_parts_repeats_bit_by_bit(engine, world, kind):
    """The same training again in the same process gives the same bits."""
    width = WIDTHS["odd"]
    assert_bitwise_repeatable(lambda: run(world, sharded(engine, world, kind, width, comm_fusion=True), width).steps)

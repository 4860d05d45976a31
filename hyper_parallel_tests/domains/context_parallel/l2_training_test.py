"""Training of a block with a divided sequence against a single card."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from hyper_parallel_tests.domains.context_parallel.networks import STYLES, TOKENS, batch, block, by_method, styled
from hyper_parallel_tests.domains.context_parallel.reference import part, positions_of
from hyper_parallel_tests.domains.context_parallel.setting import METHODS
from hyper_parallel_tests.harness import (
    World,
    assert_bitwise_repeatable,
    assert_parity,
    contract,
    mean_over_ranks,
    train,
    train_baseline,
)
from hyper_parallel_tests.harness.judging.parity import Track
from hyper_parallel_tests.models.seeding import Batch

STEPS = 2
sgd = partial(torch.optim.SGD, lr=0.1, momentum=0.9)

each_style = pytest.mark.parametrize("style", STYLES)


def loss(model: nn.Module, rows: Batch, positions: Tensor) -> Tensor:
    """Squared error averaged over the tokens: the mean over ranks with equally many is the whole's."""
    return F.mse_loss(model(rows.inputs, positions), rows.targets)


def train_on_ranks(engine: Any, world: World, model: nn.Module, load_balance: bool = False) -> Track:
    """Trains with this rank's tokens of all rows; gradients are averaged over the ranks."""
    where = (world.rank, world.size, load_balance)
    positions = torch.tensor(positions_of(world.rank, world.size, TOKENS, load_balance), device=world.device)

    def average_gradients(model: nn.Module) -> None:
        for parameter in model.parameters():
            engine.all_reduce(parameter.grad)
            parameter.grad /= world.size

    return train(
        model,
        [Batch(*(part(one, 1, *where) for one in batch(world, seed))) for seed in range(STEPS)],
        partial(loss, positions=positions),
        optimizer=sgd,
        average=mean_over_ranks,
        before_update=average_gradients,
    )


def train_on_one_card(world: World) -> Track:
    """Trains with the whole sequences."""
    whole = partial(loss, positions=torch.arange(TOKENS, device=world.device))
    return train_baseline(block(world), [batch(world, seed) for seed in range(STEPS)], whole, optimizer=sgd)


@contract("CP-2-01")
@each_style
def test_training_by_a_style(engine, world, ledger, style):
    """Over two steps loss, norm, gradients and parameters are the single card's."""
    candidate = train_on_ranks(engine, world, styled(engine, world, style))
    assert_parity(candidate, train_on_one_card(world), ledger["cp_fp32"])


@contract("CP-2-01")
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("load_balance", [False, True], ids=["in_order", "zig_zag"])
def test_training_by_a_method(engine, world, ledger, method, load_balance):
    """The same with each method, in order and zig-zag."""
    candidate = train_on_ranks(engine, world, by_method(engine, world, method, load_balance), load_balance)
    assert_parity(candidate, train_on_one_card(world), ledger["cp_fp32"])


@contract("CP-2-02")
@each_style
def test_asynchronous_training(engine, world, ledger, style):
    """With transfers beside the projections training is bit for bit that without, and the single card's."""
    candidate = train_on_ranks(engine, world, styled(engine, world, style, asynchronous=True))
    beside = train_on_ranks(engine, world, styled(engine, world, style))
    assert_parity(candidate, beside, ledger["exact"], own_because="transfers beside the projections change no bit")
    assert_parity(candidate, train_on_one_card(world), ledger["cp_fp32"])


@contract("CP-2-02")
@each_style
def test_training_repeats_bit_by_bit(engine, world, style):
    """The same training again in the same process gives the same bits."""
    assert_bitwise_repeatable(
        lambda: train_on_ranks(engine, world, styled(engine, world, style, asynchronous=True)).steps
    )

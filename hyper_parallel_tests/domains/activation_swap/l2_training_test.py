"""Training with swap against training without, on the same card or under data parallelism on the same ranks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from functools import partial
from typing import Any

import pytest
import torch
from torch import nn

from hyper_parallel_tests.domains.activation_swap.networks import (
    ROWS,
    SEED,
    batches,
    chain,
    in_order,
    on_all_ranks,
    steps_of,
    swap_layers,
)
from hyper_parallel_tests.domains.activation_swap.setting import Call, given, gradients, turn_of
from hyper_parallel_tests.harness import (
    World,
    assert_bitwise_repeatable,
    assert_equal,
    assert_parity,
    contract,
    mean_over_ranks,
    train,
    train_baseline,
)
from hyper_parallel_tests.harness.judging.parity import Track
from hyper_parallel_tests.models.decoder import DecoderShape, decoder, decoder_batch, decoder_loss
from hyper_parallel_tests.models.mlp import mlp_loss
from hyper_parallel_tests.models.seeding import Batch

SGD = partial(torch.optim.SGD, lr=0.1)
SHAPE = DecoderShape(vocab=16, hidden=16, layers=3, heads=4, kv_heads=2, ffn=24, seq=8, tied=True)

EVEN, CHANGING = [ROWS] * 3, [ROWS, 2 * ROWS, 1, ROWS]
NETWORKS = {
    "plain": {"last": "none"},
    "shared_outputs": {"last": "tanh"},
    "residual": {"last": "residual"},
    "dropout": {"last": "residual", "dropout": 0.25},
    "two_layers": {"depth": 2},
    "one_layer": {"depth": 1},
}


def with_swap(engine: Any, world: World, model: nn.Module, rows: Sequence[Batch], loss: Any = mlp_loss) -> Track:
    """Trains a model of which all layers are swapped."""
    named = dict(model.named_parameters())
    swap_layers(engine, model.layers if hasattr(model, "layers") else model.blocks)
    with torch.random.fork_rng():
        torch.manual_seed(SEED + world.rank)
        return train(on_all_ranks(model), rows, loss, optimizer=SGD, average=mean_over_ranks, params=named.items)


def without_swap(world: World, model: nn.Module, rows: Sequence[Batch], loss: Any = mlp_loss) -> Track:
    """The same without swap and without the engine."""
    with torch.random.fork_rng():
        torch.manual_seed(SEED + world.rank)
        return train_baseline(model, rows, loss, wrap=on_all_ranks, optimizer=SGD, average=mean_over_ranks)


@contract("SW-2-01")
@pytest.mark.parametrize("network", NETWORKS.values(), ids=NETWORKS)
def test_networks(engine, world, ledger, network):
    """Whatever layers share, add or drop, a network trains bit for bit as without swap."""
    rows = batches(world, EVEN)
    candidate = with_swap(engine, world, chain(world.device, **network), rows)
    assert_parity(candidate, without_swap(world, chain(world.device, **network), rows), ledger["exact"])


@contract("SW-2-01")
def test_decoder(engine, world, ledger):
    """So does a decoder, whose blocks share their positions and whose embedding is its output layer."""
    whole = [decoder_batch(seed, 2 * world.size, SHAPE) for seed in range(2)]
    rows = [one.part(world.rank, world.size).to(world.device) for one in whole]
    candidate = with_swap(engine, world, decoder(SHAPE).to(world.device), rows, decoder_loss)
    baseline = without_swap(world, decoder(SHAPE).to(world.device), rows, decoder_loss)
    assert_parity(candidate, baseline, ledger["exact"])


@contract("SW-2-01")
@pytest.mark.parametrize("fused", [False, True], ids=["single", "fused"])
@pytest.mark.parametrize("last", ["tanh", "residual"])
def test_changing_shapes(engine, world, ledger, last, fused):
    """Steps of more, of fewer, and again of as many rows are each what they are without swap."""
    rows = batches(world, CHANGING)
    # Where copies cannot be fused, single ones need no context.
    with engine.set_swap_fusion(True) if fused else nullcontext():
        candidate = with_swap(engine, world, chain(world.device, last=last), rows)
    assert_parity(candidate, without_swap(world, chain(world.device, last=last), rows), ledger["exact"])


@contract("SW-2-01")
def test_late_copies(engine, world, ledger):
    """So are steps whose copies are as late as they may be."""
    rows = batches(world, EVEN)
    with engine.watch_swap_copies(held=True):
        candidate = with_swap(engine, world, chain(world.device, last="tanh"), rows)
    assert_parity(candidate, without_swap(world, chain(world.device, last="tanh"), rows), ledger["exact"])


def evaluated(model: nn.Module, batch: Batch) -> torch.Tensor:
    """The loss, behind an evaluation of other rows than the batch's."""
    training = model.training
    model.eval()
    with torch.no_grad():
        model(batch.inputs[:1] + 1)
    model.train(training)
    return mlp_loss(model, batch)


def evaluated_between(model: nn.Module, batch: Batch) -> torch.Tensor:
    """The loss, with an evaluation between it and the backward."""
    loss = mlp_loss(model, batch)
    with torch.no_grad():
        model(batch.inputs[:1] + 1)
    return loss


def forgotten(model: nn.Module, batch: Batch) -> torch.Tensor:
    """The loss, behind a forward with gradients that nobody runs backward."""
    inner = model.module if hasattr(model, "module") else model
    inner(batch.inputs[:1] + 1)
    return mlp_loss(model, batch)


def together(model: nn.Module, batch: Batch) -> torch.Tensor:
    """The loss of two forwards, of which both graphs are there when backward begins."""
    half = Batch(batch.inputs + 1, batch.targets)
    inner = model.module if hasattr(model, "module") else model
    return mlp_loss(model, batch) + mlp_loss(inner, half)


BETWEEN: dict[str, Callable[[nn.Module, Batch], torch.Tensor]] = {
    "evaluation": evaluated,
    "evaluation_before_backward": evaluated_between,
    "forgotten_forward": forgotten,
    "two_forwards": together,
}


@contract("SW-2-01")
@pytest.mark.parametrize("loss", BETWEEN.values(), ids=BETWEEN)
def test_other_passes_between(engine, world, ledger, loss):
    """Forwards that are evaluations, that are dropped, or that are run backward together with others change nothing."""
    rows = batches(world, EVEN)
    candidate = with_swap(engine, world, chain(world.device, last="tanh"), rows, loss)
    assert_parity(candidate, without_swap(world, chain(world.device, last="tanh"), rows, loss), ledger["exact"])


@contract("SW-2-01")
@pytest.mark.parametrize("fused", [False, True], ids=["single", "fused"])
@pytest.mark.parametrize("last", ["none", "tanh", "residual"])
def test_micro_batches_under_way(engine, world, last, fused):
    """Backwards of several forwards, each behind the next one's forward, add up to the gradients without swap."""

    def accumulated(model: nn.Module) -> dict[str, torch.Tensor]:
        rows = iter(batches(world, [ROWS, 2 * ROWS, ROWS]))
        under_way = mlp_loss(model, next(rows))
        for batch in rows:
            following = mlp_loss(model, batch)
            under_way.backward()
            under_way = following
        under_way.backward()
        return {str(number): one.grad for number, one in enumerate(model.parameters())}

    plain, model = chain(world.device, last=last), chain(world.device, last=last)
    swap_layers(engine, model.layers)
    with engine.set_swap_fusion(True) if fused else nullcontext():
        assert_equal(accumulated(model), accumulated(plain), what="gradients")


@contract("SW-2-01")
def test_gradients_of_gradients(engine, world):
    """A backward through a backward gives what it gives without swap."""

    def second(model: nn.Module) -> dict[str, torch.Tensor]:
        inputs = given(world)
        (first,) = torch.autograd.grad(model(inputs).square().sum(), inputs, create_graph=True)
        return gradients(first, inputs)

    plain, model = chain(world.device, last="tanh"), chain(world.device, last="tanh")
    swap_layers(engine, model.layers)
    assert_equal(second(model), second(plain), what="values")


class Stumbling(nn.Module):
    """Fails in the forward, or in the backward, of its second call, and gives what it gets."""

    def __init__(self, where: str) -> None:
        super().__init__()
        self.where, self.calls = where, 0

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        if self.calls == 2 and self.where == "forward":
            raise ZeroDivisionError
        if self.calls == 2 and self.where == "backward":
            hidden = hidden * 1
            hidden.register_hook(fail)
        return hidden


def fail(_: torch.Tensor) -> None:
    raise ZeroDivisionError


def stumbled(engine: Any, model: nn.Module, where: str, batch: Batch) -> list[nn.Module]:
    """Swaps a model's layers, and has one step succeed and one fail in the second of them. Gives the layers."""
    model.layers[1].last = nn.Sequential(Call(model.layers[1].last), Stumbling(where))
    layers = swap_layers(engine, model.layers)
    mlp_loss(model, batch).backward()
    with pytest.raises(ZeroDivisionError):
        mlp_loss(model, batch).backward()
    return layers


either_place = pytest.mark.parametrize("where", ["forward", "backward"])


@contract("SW-2-01")
@either_place
@pytest.mark.parametrize("last", ["none", "tanh"])
def test_after_a_failed_step(engine, world, ledger, where, last):
    """Steps after one that failed in the middle are what they are without it."""
    rows = batches(world, EVEN)
    model = chain(world.device, last=last)
    named = dict(model.named_parameters())
    stumbled(engine, model, where, rows[0])
    candidate = train(on_all_ranks(model), rows, mlp_loss, optimizer=SGD, average=mean_over_ranks, params=named.items)
    assert_parity(candidate, without_swap(world, chain(world.device, last=last), rows), ledger["exact"])


@contract("SW-2-01")
@either_place
def test_failed_step_leaves_no_turn(engine, world, where):
    """A step that fails in the middle of a layer leaves no layer's turn."""
    manager = engine.SwapManager()
    with turn_of(manager) as group:
        stumbled(engine, chain(world.device), where, batches(world, EVEN)[0])
        assert manager.get_current_group_name() == group


@contract("SW-2-01")
@either_place
def test_failed_step_stops_no_moves(engine, world, where):
    """In the step after one that failed, all layers move as in any other."""
    batch = batches(world, EVEN)[0]
    model = chain(world.device)
    layers = stumbled(engine, model, where, batch)
    with steps_of(engine.SwapManager(), layers) as steps:
        mlp_loss(model, batch).backward()
    assert steps == in_order(4)


@contract("SW-2-01")
def test_repeated(engine, world):
    """Two runs in one process are equal bit for bit."""
    assert_bitwise_repeatable(lambda: with_swap(engine, world, chain(world.device, last="tanh"), batches(world, EVEN)))

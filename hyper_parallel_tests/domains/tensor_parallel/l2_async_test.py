"""Products of a divided sequence with their transfers beside them, against those without and against a single card."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from hyper_parallel_tests.domains.tensor_parallel.networks import (
    GROUPED,
    decoder_batches,
    decoder_loss,
    decoder_plan,
    divided_decoder,
    mesh_of,
    own_tokens,
    sgd,
    whole_decoder,
)
from hyper_parallel_tests.harness import World, assert_equal, assert_parity, contract, train, train_baseline

# Adam squares gradients, so that one that is still partial would show.
OPTIMIZERS = {"sgd": sgd, "adam": partial(torch.optim.Adam, lr=1e-3, eps=1e-3, foreach=False)}
ROWS, TOKENS, WIDTH = 2, 8, 12


def numbers(world: World, *shapes: tuple[int, ...]) -> list[Tensor]:
    """Leaves of these shapes, the same on all ranks: whole numbers, so that sums are exact in any order."""
    source = world.generator(0)
    found = [torch.randint(-3, 4, shape, generator=source).float() for shape in shapes]
    return [one.to(world.device).requires_grad_() for one in found]


def columns_of(world: World, whole: Tensor) -> Tensor:
    """This rank's part of the last dimension."""
    return whole.chunk(world.size, -1)[world.rank]


def weigh(outputs: list[Tensor]) -> Tensor:
    """A number to which each element adds differently."""
    return sum((one * torch.arange(1.0, 1 + one.numel(), device=one.device).view_as(one)).sum() for one in outputs)


@contract("TP-2-02")
@pytest.mark.parametrize("count", [1, 3], ids=["one_weight", "three_weights"])
def test_gathered_tokens_times_columns(engine, world, count):
    """Products and gradients are those of all tokens with this rank's columns; the tokens' are summed over ranks."""
    whole, *weights = numbers(world, (ROWS, TOKENS, WIDTH), *[(WIDTH, 4)] * count)
    # The whole product of each weight, of which this rank's columns are cut for its own share of the loss.
    outputs = [whole @ weight for weight in weights]
    loss = sum(weigh([one.chunk(world.size, -1)[rank] for one in outputs]) for rank in range(world.size))
    loss.backward()
    own = own_tokens(world, whole).detach().clone().requires_grad_()
    columns = [columns_of(world, one).detach().t().contiguous().requires_grad_() for one in weights]
    found = engine.all_gather_matmul(own, columns, mesh_of(world))
    weigh(found).backward()
    expected = [columns_of(world, one).detach() for one in outputs]
    assert_equal([one.detach() for one in found], expected, what="product")
    assert_equal(own.grad, own_tokens(world, whole.grad), what="gradient of the tokens")
    expected = [columns_of(world, one.grad).t() for one in weights]
    assert_equal([one.grad for one in columns], expected, what="gradient of the weights")


@contract("TP-2-02")
def test_rows_times_features_scattered(engine, world):
    """Sums over the ranks and gradients are those of the whole product; each rank has its tokens of them."""
    whole, weight = numbers(world, (ROWS, TOKENS, WIDTH), (WIDTH, 4))
    output = whole @ weight
    shares = [weigh([one]) for one in output.chunk(world.size, 1)]
    sum(shares).backward()
    own = columns_of(world, whole).detach().clone().requires_grad_()
    rows = weight.detach().chunk(world.size)[world.rank].t().contiguous().requires_grad_()
    found = engine.matmul_reduce_scatter(own, rows, mesh_of(world))
    weigh([found]).backward()
    assert_equal(found.detach(), own_tokens(world, output.detach()), what="sum of the products")
    assert_equal(own.grad, columns_of(world, whole.grad), what="gradient of the features")
    expected = weight.grad.chunk(world.size)[world.rank].t()
    assert_equal(rows.grad, expected, what="gradient of the rows")


class AfterFirstProduct(TorchDispatchMode):
    """Calls `then` once, when the first product has been computed."""

    def __init__(self, then: Any) -> None:
        super().__init__()
        self._then = then

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = func(*args, **(kwargs or {}))
        if self._then is not None and func.overloadpacket in (torch.ops.aten.mm, torch.ops.aten.bmm):
            then, self._then = self._then, None
            then()
        return found


@contract("TP-2-02")
@pytest.mark.watchdog(20)
@pytest.mark.parametrize("name", ["all_gather_matmul", "matmul_reduce_scatter"])
def test_first_product_waits_for_no_other_rank(engine, world, name):
    """Each rank computes its first product though the last rank begins only when all others have done so."""
    inputs, weight = numbers(world, (ROWS, TOKENS, WIDTH), (4, WIDTH))
    last, token = world.size - 1, torch.zeros(1, device=world.device)
    # A group apart, so that this message is not taken for a part of the sequence.
    apart = engine.new_group(list(range(world.size)))

    def tell() -> None:
        engine.send(token, dst=last, group=apart)

    if world.rank == last:
        for rank in range(last):
            engine.recv(token, src=rank, group=apart)
    with torch.no_grad(), AfterFirstProduct(tell if world.rank != last else None):
        if name == "all_gather_matmul":
            found = engine.all_gather_matmul(own_tokens(world, inputs), [weight], mesh_of(world))[0]
        else:
            found = engine.matmul_reduce_scatter(inputs, weight, mesh_of(world))
    assert found.shape[1] == (TOKENS if name == "all_gather_matmul" else TOKENS // world.size)


@contract("TP-2-02")
def test_tokens_that_do_not_divide(engine, world):
    """Tokens that ranks do not divide are refused before anything is sent, with both numbers."""
    tokens = 2 * world.size + 1
    inputs, weight = numbers(world, (ROWS, tokens, 4), (4, 4))
    with pytest.raises(ValueError, match=rf"\b{tokens}\b.*\b{world.size}\b"):
        engine.matmul_reduce_scatter(inputs, weight, mesh_of(world))


def make_asynchronous(engine: Any, world: World, feed_forward: nn.Module) -> None:
    """Has a divided feed-forward run on this rank's tokens."""
    mesh = mesh_of(world)

    def forward(own: Tensor) -> Tensor:
        gate, up, down = (getattr(feed_forward, name).weight.to_local() for name in ("gate", "up", "down"))
        gate, up = engine.all_gather_matmul(own, [gate, up], mesh)
        return engine.matmul_reduce_scatter(F.silu(gate) * up, down, mesh)

    feed_forward.forward = forward


def asynchronous_decoder(engine: Any, world: World) -> nn.Module:
    """A decoder with a divided sequence, whose feed-forwards gather and scatter beside their products."""
    model = whole_decoder(world, GROUPED)
    plan = decoder_plan(engine, sequence=True)
    # Its input is not laid out before it runs; it takes this rank's tokens as they are.
    del plan["blocks.*.ffn"]
    plan["blocks.*.ffn_norm"] = engine.SequenceParallel(use_local_output=True)
    engine.parallelize_module(model, mesh_of(world), plan)
    for block in model.blocks:
        make_asynchronous(engine, world, block.ffn)
    return model


@contract("TP-2-02")
@pytest.mark.parametrize("optimizer", OPTIMIZERS.values(), ids=OPTIMIZERS)
def test_training(engine, world, ledger, optimizer):
    """With transfers beside the products training is that without, and that of one card."""
    batches = decoder_batches(world, GROUPED)
    beside = train(asynchronous_decoder(engine, world), batches, decoder_loss, optimizer=optimizer)
    baseline = train_baseline(whole_decoder(world, GROUPED), batches, decoder_loss, optimizer=optimizer)
    assert_parity(beside, baseline, ledger["tp_fp32"])
    plain = divided_decoder(engine, world, GROUPED, sequence=True)
    without = train(plain, batches, decoder_loss, optimizer=optimizer)
    assert_parity(beside, without, ledger["tp_fp32"], own_because="transfers beside the products change no result")

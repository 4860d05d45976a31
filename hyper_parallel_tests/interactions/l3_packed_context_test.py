"""Supervised fine-tuning on packed sequences that are divided over ranks: documents of prompts and answers.

Only answers count, so that ranks have unequal numbers of tokens in the loss, and some none at all.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from hyper_parallel_tests.harness import World, assert_parity, contract, mean_over_ranks, train, train_baseline
from hyper_parallel_tests.interactions import decoders
from hyper_parallel_tests.interactions.decoders import optimizer
from hyper_parallel_tests.interactions.life_cycle import assert_closed
from hyper_parallel_tests.interactions.scenario import scenario
from hyper_parallel_tests.models.decoder import Decoder, decoder
from hyper_parallel_tests.models.seeding import generator

HERE = scenario("IX-20")
SHAPE = replace(decoders.SHAPE, seq=16)
UNCOUNTED = -100
# Of each step, for each of two rows: documents, each of so many tokens of a prompt and of its answer.
PACKINGS = (
    (((4, 2), (3, 4), (1, 2)), ((8, 8),)),
    (((2, 6), (6, 2)), ((1, 1), (2, 3), (5, 4))),
    # Only the third quarter has targets: one rank has none, in order and zig-zag.
    (((9, 4), (3, 0)), ((9, 1), (1, 2), (3, 0))),
)
LAYOUTS = {"ulysses": ("ulysses", False), "all_gather_zig_zag": ("all_gather", True), "ring": ("ring", False)}

each_layout = pytest.mark.parametrize(("method", "load_balance"), LAYOUTS.values(), ids=LAYOUTS)


class Packed(NamedTuple):
    """Rows of documents; all int64 and (rows, tokens), but for positions (tokens,)."""

    tokens: Tensor
    targets: Tensor
    documents: Tensor
    positions: Tensor


def packed(world: World, step: int) -> Packed:
    """The rows of a step. A target is the token that follows, in an answer; prompts and ends have none."""
    tokens = torch.randint(SHAPE.vocab, (len(PACKINGS[step]), SHAPE.seq), generator=generator(step, "packed"))
    targets, documents = torch.full_like(tokens, UNCOUNTED), torch.zeros_like(tokens)
    for row, packing in enumerate(PACKINGS[step]):
        start = 0
        for number, (prompt, answer) in enumerate(packing):
            end = start + prompt + answer
            documents[row, start:end] = number
            targets[row, start + prompt - 1 : end - 1] = tokens[row, start + prompt : end]
            start = end
    return Packed(*(one.to(world.device) for one in (tokens, targets, documents, torch.arange(SHAPE.seq))))


class Core(nn.Module):
    """Causal attention inside of documents, which are those of the batch at hand."""

    def __init__(self, attend: Callable[..., Tensor]) -> None:
        super().__init__()
        self.attend = attend
        self.documents: Tensor | None = None

    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return self.attend(q, k, v, documents=self.documents)


def attention(q: Tensor, k: Tensor, v: Tensor, documents: Tensor) -> Tensor:
    """On one card, with a mask."""
    seen = (documents[:, :, None] == documents[:, None, :]).tril()
    return F.scaled_dot_product_attention(q, k, v, attn_mask=seen[:, None], enable_gqa=True)


def with_cores(world: World, attend: Callable[..., Tensor]) -> Decoder:
    model = decoder(SHAPE)
    for block in model.blocks:
        block.attention.core = Core(attend)
    return model.to(world.device)


def loss(model: nn.Module, batch: Packed) -> Tensor:
    """Mean cross entropy of the tokens that count, on one card."""
    return sum_of_errors(model, batch) / (batch.targets != UNCOUNTED).sum()


def sum_of_errors(model: nn.Module, batch: Packed) -> Tensor:
    for block in model.blocks:
        block.attention.core.documents = batch.documents
    logits = model(batch.tokens, batch.positions)
    return F.cross_entropy(logits.flatten(0, 1), batch.targets.flatten(), ignore_index=UNCOUNTED, reduction="sum")


def loss_of_part(model: nn.Module, batch: Packed, engine: Any, ranks: int) -> Tensor:
    """Errors of this rank's tokens over the mean number that counts: the mean over ranks is the whole's."""
    counted = (batch.targets != UNCOUNTED).sum()
    engine.all_reduce(counted)
    return sum_of_errors(model, batch) * ranks / counted


def divided(engine: Any, world: World, method: str, load_balance: bool) -> tuple[Decoder, list[Packed]]:
    """The decoder, sharded over the ranks that divide its sequence, and this rank's tokens of each step."""
    mesh = HERE.mesh(world)
    options = {"method": method, "causal": True, "load_balance": load_balance}
    model = with_cores(world, partial(engine.context_parallel_attention, device_mesh=mesh, **options))
    for block in model.blocks:
        engine.fully_shard(block, mesh=mesh)
    engine.fully_shard(model, mesh=mesh)

    def part(tensor: Tensor) -> Tensor:
        return engine.context_parallel_shard(tensor, mesh, tensor.ndim - 1, load_balance=load_balance)

    return model, [Packed(*map(part, packed(world, step))) for step in range(len(PACKINGS))]


@contract("IX-20")
@each_layout
def test_trains_as_a_single_card_does(engine, world, ledger, method, load_balance):
    """Loss, norm, gradients and parameters of three steps, each with other documents, are the single card's."""
    model, rows = divided(engine, world, method, load_balance)
    here = partial(loss_of_part, engine=engine, ranks=world.size)
    candidate = train(model, rows, here, optimizer=optimizer, average=mean_over_ranks)
    whole = [packed(world, step) for step in range(len(PACKINGS))]
    baseline = train_baseline(with_cores(world, attention), whole, loss, optimizer=optimizer)
    assert_parity(candidate, baseline, ledger["cp_fsdp_fp32"])


@contract("IX-20")
@each_layout
def test_life_cycle_is_closed(engine, world, method, load_balance):
    """After a step no transfer is under way, no parameter is gathered and nothing has grown, without targets too."""
    model, (*_, rows) = divided(engine, world, method, load_balance)
    assert (rows.targets != UNCOUNTED).any() == (world.rank == 1)
    update = optimizer(model.parameters())
    assert_closed(lambda: loss_of_part(model, rows, engine, world.size).backward(), update, model)

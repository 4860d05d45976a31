"""Attention whose sequence is divided by a context-parallel style; its data and loss."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from hyper_parallel_tests.harness import World
from hyper_parallel_tests.models.decoder import rotate
from hyper_parallel_tests.models.seeding import Batch, build, generator

HIDDEN, HEADS, KV_HEADS, WIDTH = 16, 8, 4, 4
STEPS, ROWS, TOKENS = 3, 2, 8
# ulysses_degree of each style.
STYLES = {"ulysses": None, "all_gather": 1}
each_style = pytest.mark.parametrize("style", STYLES)
each_way = pytest.mark.parametrize("asynchronous", [True, False], ids=["asynchronous", "synchronous"])

optimizer = partial(torch.optim.AdamW, lr=1e-2, eps=1e-3, foreach=False)


class Heads(nn.Module):
    """(rows, tokens, hidden) -> (rows, tokens, heads, width), with the heads that this rank has."""

    def __init__(self, heads: int) -> None:
        super().__init__()
        self.linear = nn.Linear(HIDDEN, heads * WIDTH, bias=False)

    def forward(self, hidden: Tensor) -> Tensor:
        return self.linear(hidden).unflatten(-1, (-1, WIDTH))


class Core(nn.Module):
    """Causal attention with grouped queries and rotary positions; (rows, tokens, heads, width) in and out."""

    def forward(self, q: Tensor, k: Tensor, v: Tensor, *, q_positions: Tensor, k_positions: Tensor) -> Tensor:
        q, k, v = (one.transpose(1, 2) for one in (q, k, v))
        turned = rotate(q, q_positions), rotate(k, k_positions), v
        seen = k_positions <= q_positions[:, None]
        return F.scaled_dot_product_attention(*turned, attn_mask=seen, enable_gqa=True).transpose(1, 2)


class Attention(nn.Module):
    """(rows, tokens, hidden) in and out, added to the input."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v = Heads(HEADS), Heads(KV_HEADS), Heads(KV_HEADS)
        self.core = Core()
        self.o = nn.Linear(HEADS * WIDTH, HIDDEN, bias=False)

    def forward(self, hidden: Tensor, positions: Tensor) -> Tensor:
        mixed = self.core(self.q(hidden), self.k(hidden), self.v(hidden), q_positions=positions, k_positions=positions)
        return hidden + self.o(mixed.flatten(-2))


class Layers(nn.Module):
    """Two layers of attention."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Attention() for _ in range(2))

    def forward(self, hidden: Tensor, positions: Tensor) -> Tensor:
        for layer in self.layers:
            hidden = layer(hidden, positions)
        return hidden


def whole(world: World) -> Layers:
    """The layers on one card."""
    return build(Layers, 0).to(world.device)


def batches(world: World) -> list[Batch]:
    """Whole sequences, the same on all ranks."""
    sources = [generator(seed, "interactions_attention") for seed in range(STEPS)]
    return [
        Batch(*(torch.randn(ROWS, TOKENS, HIDDEN, generator=one) for _ in range(2))).to(world.device) for one in sources
    ]


def part(batch: Batch, rank: int, size: int) -> Batch:
    """The tokens of one of `size` ranks."""
    return Batch(*(one.chunk(size, 1)[rank] for one in batch))


def loss(model: nn.Module, batch: Batch, rank: int = 0, size: int = 1) -> Tensor:
    """Squared error of the tokens of one of `size` ranks: the mean over ranks is the whole's."""
    positions = torch.arange(TOKENS, device=batch.inputs.device).chunk(size)[rank]
    return F.mse_loss(model(batch.inputs, positions), batch.targets)


def outputs(model: nn.Module, batch: Batch, rank: int = 0, size: int = 1) -> dict[str, Tensor]:
    """What the layers give for these tokens, and the gradient of their inputs; the loss is a sum over tokens."""
    positions = torch.arange(TOKENS, device=batch.inputs.device).chunk(size)[rank]
    inputs = batch.inputs.clone().requires_grad_()
    output = model(inputs, positions)
    (output * batch.targets).sum().backward()
    return {"output": output.detach(), "gradient": inputs.grad}


def with_divided_heads(engine: Any, mesh: Any, model: Layers) -> Layers:
    """The layers with their heads divided over a mesh of one dimension; before the sequence is."""
    plan = {f"layers.*.{name}.linear": engine.ColwiseParallel() for name in "qkv"}
    return engine.parallelize_module(model, mesh, plan | {"layers.*.o": engine.RowwiseParallel()})


def with_divided_sequence(engine: Any, mesh: Any, model: Layers, style: str, *, asynchronous: bool) -> Layers:
    """The layers with the cores' sequence divided over a mesh of one dimension."""
    make = engine.AsyncContextParallel if asynchronous else engine.ContextParallel
    for layer in model.layers:
        divided = make(ulysses_degree=STYLES[style], query_kwargs={"q_positions": 0}, key_kwargs={"k_positions": 0})
        projections = {"q_proj": layer.q, "k_proj": layer.k, "v_proj": layer.v} if asynchronous else {}
        divided.apply(layer.core, mesh, **projections)
    return model

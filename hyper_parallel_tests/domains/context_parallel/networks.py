"""An attention block whose core is divided over ranks, as a user of the styles would write it."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from hyper_parallel_tests.domains.context_parallel.reference import attention
from hyper_parallel_tests.harness import World
from hyper_parallel_tests.models.decoder import rotate
from hyper_parallel_tests.models.seeding import Batch, build, generator

HIDDEN, HEADS, KV_HEADS, WIDTH = 16, 8, 4, 4
ROWS, TOKENS = 2, 16
# In (rows, tokens, heads, width), which is what the styles expect unless told otherwise.
QUERY_KWARGS = {"q_positions": 0, "mask": 2}
KEY_KWARGS = {"k_positions": 0}
# ulysses_degree of each style.
STYLES = {"ulysses": None, "all_gather": 1}


class HeadProjection(nn.Module):
    """(rows, tokens, hidden) -> (rows, tokens, heads, width): the last module before the attention."""

    def __init__(self, heads: int) -> None:
        super().__init__()
        self.linear = nn.Linear(HIDDEN, heads * WIDTH, bias=False)
        self.heads = heads

    def forward(self, hidden: Tensor) -> Tensor:
        return self.linear(hidden).unflatten(-1, (self.heads, WIDTH))


class Core(nn.Module):
    """Causal attention with rotary positions over what it is given, wherever that stands in the sequence."""

    def forward(
        self, q: Tensor, k: Tensor, v: Tensor, *, q_positions: Tensor, k_positions: Tensor, mask: Tensor | None = None
    ) -> Tensor:
        """(rows, tokens, heads, width) in and out; `mask` is (rows, 1, queries, keys), True where a key is seen."""
        q, k, v = (one.transpose(1, 2) for one in (q, k, v))
        seen = (k_positions <= q_positions[:, None])[None]
        if mask is not None:
            seen = seen & mask.squeeze(1)
        return attention(rotate(q, q_positions), rotate(k, k_positions), v, seen).transpose(1, 2)


class Block(nn.Module):
    """(rows, tokens, hidden) in and out, with grouped queries; the core gets its arguments in place or by name."""

    def __init__(self, by_name: bool = False) -> None:
        super().__init__()
        self.q, self.k, self.v = HeadProjection(HEADS), HeadProjection(KV_HEADS), HeadProjection(KV_HEADS)
        self.core = Core()
        self.o = nn.Linear(HEADS * WIDTH, HIDDEN)
        self.by_name = by_name

    def forward(self, hidden: Tensor, positions: Tensor, mask: Tensor | None = None) -> Tensor:
        q, k, v = self.q(hidden), self.k(hidden), self.v(hidden)
        others = {"q_positions": positions, "k_positions": positions, "mask": mask}
        mixed = self.core(q=q, k=k, v=v, **others) if self.by_name else self.core(q, k, v, **others)
        return self.o(mixed.flatten(-2))


def block(world: World, by_name: bool = False) -> Block:
    """The block on one card, with the same weights each time."""
    return build(lambda: Block(by_name), 0).to(world.device)


def batch(world: World, seed: int = 0) -> Batch:
    """Inputs and targets of whole sequences, the same on all ranks."""
    source = generator(seed, "context_parallel")
    return Batch(*(torch.randn(ROWS, TOKENS, HIDDEN, generator=source) for _ in range(2))).to(world.device)


def styled(engine: Any, world: World, style: str, model: Block | None = None, asynchronous: bool = False) -> Block:
    """The block with its core divided over all ranks by a style, q, k and v in place or by name."""
    model = block(world) if model is None else model
    make = engine.AsyncContextParallel if asynchronous else engine.ContextParallel
    divided = make(
        ulysses_degree=STYLES[style],
        qkv_kwarg_names=("q", "k", "v"),
        query_kwargs=QUERY_KWARGS,
        key_kwargs=KEY_KWARGS,
    )
    projections = {"q_proj": model.q, "k_proj": model.k, "v_proj": model.v} if asynchronous else {}
    divided.apply(model.core, world.mesh(cp=world.size), **projections)
    return model


class MethodCore(nn.Module):
    """The same core by one of the engine's methods, whatever the division; it needs no styles."""

    def __init__(self, engine: Any, world: World, method: str, load_balance: bool) -> None:
        super().__init__()
        self.engine, self.mesh = engine, world.mesh(cp=world.size)
        self.options = {"method": method, "load_balance": load_balance}

    def forward(
        self, q: Tensor, k: Tensor, v: Tensor, *, q_positions: Tensor, k_positions: Tensor, mask: None = None
    ) -> Tensor:
        q, k, v = (one.transpose(1, 2) for one in (q, k, v))
        turned = rotate(q, q_positions), rotate(k, k_positions), v
        return self.engine.context_parallel_attention(*turned, self.mesh, causal=True, **self.options).transpose(1, 2)


def by_method(engine: Any, world: World, method: str, load_balance: bool) -> Block:
    """The block with a core of the engine."""
    model = block(world)
    model.core = MethodCore(engine, world, method, load_balance)
    return model

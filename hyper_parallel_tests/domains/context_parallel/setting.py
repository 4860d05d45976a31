"""Queries, keys and values that each rank can build whole, and what ranks make of their parts of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from hyper_parallel_tests.domains.context_parallel.reference import attention, part, seen_keys
from hyper_parallel_tests.harness import World, mean_over_ranks

METHODS = ("ulysses", "all_gather", "ring")
BATCH, WIDTH, VALUE_WIDTH = 2, 8, 6
# Of (batch, heads, tokens, width).
TOKENS_DIM = 2


@dataclass(frozen=True)
class Case:
    """One attention, and how its sequence is divided.

    Attributes:
        tokens: length of the whole sequence.
        heads: query heads.
        kv_heads: key and value heads.
        causal: whether keys after the query are hidden.
        load_balance: zig-zag or in order.
        documents: (batch, tokens), or None.
        padding: (batch, tokens), or None.
    """

    tokens: int = 16
    heads: int = 4
    kv_heads: int = 4
    causal: bool = False
    load_balance: bool = False
    documents: Tensor | None = field(default=None)
    padding: Tensor | None = field(default=None)

    def tensors(self, world: World) -> dict[str, Tensor]:
        """q, k, v and what the output is multiplied by for the loss; the same on all ranks."""
        source = world.generator(self.tokens)
        shapes = {
            "q": (self.heads, WIDTH),
            "k": (self.kv_heads, WIDTH),
            "v": (self.kv_heads, VALUE_WIDTH),
            "weight": (self.heads, VALUE_WIDTH),
        }
        return {
            name: torch.randn(BATCH, heads, self.tokens, width, generator=source).to(world.device)
            for name, (heads, width) in shapes.items()
        }


def loss_and_gradients(
    attend: Callable[[Tensor, Tensor, Tensor], Tensor], tensors: dict[str, Tensor]
) -> dict[str, Tensor]:
    """Output, loss and gradients of q, k and v; the loss weighs each element of the output differently."""
    q, k, v = (tensors[name].clone().requires_grad_() for name in "qkv")
    output = attend(q, k, v)
    loss = (output * tensors["weight"]).sum()
    loss.backward()
    return {"output": output.detach(), "loss": loss.detach(), "dq": q.grad, "dk": k.grad, "dv": v.grad}


def on_ranks(engine: Any, world: World, case: Case, method: str, **options: Any) -> dict[str, Tensor]:
    """What this rank gets of its part, and the sum of all ranks' losses."""
    balance = case.load_balance
    own = {name: part(one, TOKENS_DIM, world.rank, world.size, balance) for name, one in case.tensors(world).items()}
    masks = {
        name: part(one, 1, world.rank, world.size, balance).to(world.device)
        for name, one in (("documents", case.documents), ("padding", case.padding))
        if one is not None
    }

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return engine.context_parallel_attention(
            q,
            k,
            v,
            world.mesh(cp=world.size),
            method=method,
            causal=case.causal,
            load_balance=balance,
            seq_len=case.tokens,
            **masks,
            **options,
        )

    found = loss_and_gradients(attend, own)
    return found | {"loss": mean_over_ranks(found["loss"]) * world.size}


def on_one_card(world: World, case: Case) -> dict[str, Tensor]:
    """What one card makes of the whole sequence, cut to this rank's part afterwards."""
    seen = seen_keys(case.tokens, causal=case.causal, documents=case.documents, padding=case.padding)
    whole = loss_and_gradients(lambda q, k, v: attention(q, k, v, seen.to(world.device)), case.tensors(world))
    return own_part(world, case, whole)


def own_part(world: World, case: Case, whole: dict[str, Tensor]) -> dict[str, Tensor]:
    """This rank's part of what belongs to tokens; the loss is whole."""
    return {
        name: one if one.ndim == 0 else part(one, TOKENS_DIM, world.rank, world.size, case.load_balance)
        for name, one in whole.items()
    }

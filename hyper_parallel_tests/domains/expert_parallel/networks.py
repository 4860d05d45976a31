"""A model with experts on ranks that have tokens of their own, and on one card with the tokens of all."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from hyper_parallel_tests.domains.expert_parallel.setting import EXPERTS
from hyper_parallel_tests.harness import World, mean_over_ranks, train, train_baseline
from hyper_parallel_tests.harness.judging.parity import Track
from hyper_parallel_tests.models.moe import MoeLayer, MoeShape, balancing_loss
from hyper_parallel_tests.models.seeding import Batch, build, generator

DIM, HIDDEN, SHARED_HIDDEN, STEPS = 8, 12, 8, 2
BALANCE = 0.1

sgd = partial(torch.optim.SGD, lr=0.1, momentum=0.9)

# Tokens of each rank; crowded ones are alike, and most of them choose the same experts; identical ones all do.
TOKENS = {
    "even": lambda rank: 6,
    "uneven": lambda rank: 2 + 5 * rank,
    "rank_without_tokens": lambda rank: 7 * min(rank, 1),
    "one_token": lambda rank: int(rank == 1),
    "crowded": lambda rank: 6 + rank,
    "identical": lambda rank: 3 + rank,
}


def shape_of(top_k: int = 2, shared: bool = False, normed: bool = False) -> MoeShape:
    """Of a `MoeLayer`."""
    return MoeShape(
        hidden=DIM,
        experts=EXPERTS,
        top_k=top_k,
        expert_ffn=HIDDEN,
        shared_ffn=SHARED_HIDDEN if shared else 0,
        normed_weights=normed,
    )


PLAIN, SHARED = shape_of(), shape_of(shared=True)


class Block(nn.Module):
    """A projection, and a layer of experts beside it: what is below the experts learns through them."""

    def __init__(self, moe: nn.Module) -> None:
        super().__init__()
        self.below = nn.Linear(DIM, DIM, bias=False)
        self.moe = moe

    def forward(self, tokens: Tensor) -> Tensor:
        hidden = self.below(tokens)
        return hidden + self.moe(hidden)


def whole_block(world: World, shape: MoeShape = PLAIN) -> Block:
    """On one card."""
    return build(lambda: Block(MoeLayer(shape)), 0).to(world.device)


def block(engine: Any, world: World, shape: MoeShape = PLAIN, **options: Any) -> Block:
    """With the engine's layer, all experts still, and the weights of the one above."""

    def make() -> Block:
        norm, shared = shape.normed_weights, shape.shared_ffn
        return Block(
            engine.MoE(DIM, HIDDEN, EXPERTS, shape.top_k, route_norm=norm, shared_hidden_dim=shared, **options)
        )

    return build(make, 0).to(world.device)


def divided_block(
    engine: Any, world: World, shape: MoeShape = PLAIN, *, style: Any = None, mesh: Any = None, **options: Any
) -> Block:
    """With the experts divided over a mesh of one dimension, all ranks unless given."""
    model = block(engine, world, shape, **options)
    (style or engine.ExpertParallel()).apply(model.moe.experts, mesh or world.mesh(ep=world.size))
    return model


def batch_of(rank: int, tokens: str, seed: int = 0) -> Batch:
    """A rank's tokens and targets, (tokens, DIM)."""
    source = generator(seed, f"expert_parallel {rank}")
    inputs, targets = (torch.randn(TOKENS[tokens](rank), DIM, generator=source) for _ in range(2))
    if tokens in ("crowded", "identical"):
        inputs = inputs * (tokens == "crowded") / 4 + torch.randn(
            DIM, generator=generator(0, "what all tokens are alike in")
        )
    return Batch(inputs, targets)


def rows_of_rank(world: World, tokens: str) -> Tensor:
    """This rank's tokens."""
    return batch_of(world.rank, tokens).inputs.to(world.device)


def whole_batch(world: World, tokens: str, seed: int = 0, ranks: int | None = None) -> Batch:
    """The tokens of all ranks, one rank's after the other's."""
    parts = [batch_of(rank, tokens, seed) for rank in range(ranks or world.size)]
    return Batch(*(torch.cat(one) for one in zip(*parts, strict=True))).to(world.device)


def squared_error(model: Block, rows: Batch, elements: int) -> Tensor:
    """Summed over the rows that are there, divided by the number of elements that all ranks have."""
    return (model(rows.inputs) - rows.targets).square().sum() / elements


def whole_loss(model: Block, rows: Batch) -> Tensor:
    """Mean squared error and balancing loss, on one card."""
    output = squared_error(model, rows, rows.targets.numel())
    return output + BALANCE * balancing_loss(model.moe.routing.scores, model.moe.routing.experts)


def loss_share(model: Block, rows: Batch, *, engine: Any, mesh: Any, elements: int) -> Tensor:
    """This rank's share of it: the shares of all ranks add up to the loss."""
    output = squared_error(model, rows, elements)
    routing = model.moe.routing
    return output + BALANCE * engine.load_balancing_loss(routing.scores, routing.experts, device_mesh=mesh)


def sum_over_ranks(share: Tensor) -> Tensor:
    return mean_over_ranks(share) * torch.distributed.get_world_size()


def gradients(model: Block, part: str = "") -> dict[str, Tensor]:
    """Of the parameters whose names begin with `part`, whole."""
    found = {name: one.grad for name, one in model.named_parameters() if name.startswith(part)}
    return {name: one.full_tensor() if hasattr(one, "full_tensor") else one.clone() for name, one in found.items()}


def train_on_ranks(engine: Any, world: World, model: Block, tokens: str, mesh: Any = None) -> Track:
    """Trains with this rank's tokens; the gradients are made those of the sum of all ranks' shares.

    Args:
        mesh: of all ranks; (ep,) unless given.
    """
    data = mesh or world.mesh(ep=world.size)
    elements = whole_batch(world, tokens).targets.numel()
    return train(
        model,
        [batch_of(world.rank, tokens, seed).to(world.device) for seed in range(STEPS)],
        partial(loss_share, engine=engine, mesh=world.mesh(ep=world.size), elements=elements),
        optimizer=sgd,
        average=sum_over_ranks,
        before_update=lambda model: engine.synchronize_moe_gradients(model, data, reduce_op_type="sum"),
    )


def train_on_one_card(world: World, shape: MoeShape, tokens: str, ranks: int | None = None) -> Track:
    """Trains with the tokens of all ranks, or of so many."""
    batches = [whole_batch(world, tokens, seed, ranks) for seed in range(STEPS)]
    return train_baseline(whole_block(world, shape), batches, whole_loss, optimizer=sgd)


def train_by_style(engine: Any, world: World, tokens: str, use_grouped_mm: bool = False, **style: Any) -> Track:
    """Trains the layer with a shared expert, its experts divided by a style with these arguments."""
    style = engine.ExpertParallel(**style)
    model = divided_block(engine, world, SHARED, style=style, use_grouped_mm=use_grouped_mm)
    return train_on_ranks(engine, world, model, tokens)

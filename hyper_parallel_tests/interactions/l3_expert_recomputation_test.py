"""Layers of experts in recomputed regions, which route, exchange rows and balance once more in backward."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from hyper_parallel_tests.harness import (
    World,
    assert_equal,
    assert_parity,
    contract,
    mean_over_ranks,
    train,
    train_baseline,
)
from hyper_parallel_tests.harness.judging.parity import Track
from hyper_parallel_tests.interactions.life_cycle import assert_closed
from hyper_parallel_tests.interactions.scenario import scenario
from hyper_parallel_tests.models.moe import MoeLayer, MoeShape, Router, Routing, balancing_loss
from hyper_parallel_tests.models.seeding import Batch, build, generator

HERE = scenario("IX-19")
SHAPE = MoeShape(hidden=8, experts=4, top_k=2, expert_ffn=12)
STEPS, ROWS, LAYERS = 3, 12, 2
BALANCE, RATE = 0.1, 0.05

REGIONS = {
    "reentrant": {"use_reentrant": True},
    "full": {},
    "products_kept": {"policy_fn": [torch.ops.aten.mm.default]},
}
each_region = pytest.mark.parametrize("options", REGIONS.values(), ids=REGIONS)

optimizer = partial(torch.optim.AdamW, lr=1e-2, eps=1e-3, foreach=False)


class BiasedRouter(Router):
    """A bias moves the choice and no weight; `adjust` has it follow the load."""

    def __init__(self, shape: MoeShape) -> None:
        super().__init__(shape)
        self.bias = torch.zeros(shape.experts)

    def forward(self, tokens: Tensor) -> Routing:
        scores = self.gate(tokens).softmax(-1)
        order = (scores.detach() + self.bias.to(scores.device)).argsort(dim=-1, descending=True, stable=True)
        experts = order[:, : self.top_k]
        return Routing(scores.gather(1, experts), experts, scores)

    def adjust(self, experts: Tensor) -> None:
        counts = experts.flatten().bincount(minlength=len(self.bias)).cpu().float()
        self.bias += RATE * (counts.mean() - counts).sign()


def expert_layer(engine: Any) -> nn.Module:
    """The engine's, with a bias that follows the load."""
    return engine.MoE(SHAPE.hidden, SHAPE.expert_ffn, SHAPE.experts, SHAPE.top_k, load_balance_coeff=RATE)


class Balanced(nn.Module):
    """The engine's layer whose balancing loss is attached inside, so that it is part of the region."""

    def __init__(self, engine: Any) -> None:
        super().__init__()
        self.moe = expert_layer(engine)
        self.engine, self.mesh = engine, None

    def forward(self, hidden: Tensor) -> Tensor:
        output, routing = self.moe(hidden), self.moe.routing
        share = self.engine.load_balancing_loss(routing.scores, routing.experts, device_mesh=self.mesh)
        return self.engine.attach_auxiliary_loss(output, share, scale=BALANCE)


class Stack(nn.Module):
    """A projection and layers, each of the normed input and added; (rows, hidden) in and out."""

    def __init__(self, layers: Iterator[nn.Module]) -> None:
        super().__init__()
        self.below = nn.Linear(SHAPE.hidden, SHAPE.hidden, bias=False)
        self.layers = nn.ModuleList(layers)

    def forward(self, hidden: Tensor) -> Tensor:
        hidden = self.below(hidden)
        for layer in self.layers:
            hidden = hidden + layer(F.rms_norm(hidden, hidden.shape[-1:]))
        return hidden


class Plain(nn.Module):
    """The same on one card, without the loss; names are those of `Balanced`."""

    def __init__(self) -> None:
        super().__init__()
        self.moe = MoeLayer(SHAPE)
        self.moe.router = BiasedRouter(SHAPE)

    def forward(self, hidden: Tensor) -> Tensor:
        return self.moe(hidden)


def batches(world: World) -> list[Batch]:
    """Rows of all ranks; the same on each."""
    sources = [generator(step, "expert_recomputation") for step in range(STEPS)]
    return [
        Batch(*(torch.randn(ROWS, SHAPE.hidden, generator=one) for _ in range(2))).to(world.device) for one in sources
    ]


def mine(world: World) -> list[Batch]:
    return [one.part(world.rank, world.size) for one in batches(world)]


def divided(engine: Any, world: World) -> tuple[Stack, Any]:
    """The layers with their experts divided over all ranks, and the mesh of these."""
    mesh = HERE.mesh(world)
    model = build(lambda: Stack(Balanced(engine) for _ in range(LAYERS)), 0).to(world.device)
    for layer in model.layers:
        layer.mesh = mesh
        engine.ExpertParallel().apply(layer.moe.experts, mesh)
    return model, mesh


def make_regions(engine: Any, model: Stack, options: dict[str, Any]) -> list[tuple[str, Tensor]]:
    """Makes a region of each layer; gives the parameters by the names that they have without."""
    named = list(model.named_parameters())
    model.layers = nn.ModuleList(engine.checkpoint_wrapper(layer, **options) for layer in model.layers)
    return named


def squared_error(model: nn.Module, rows: Batch) -> Tensor:
    """Of these rows, as a share of the mean over all."""
    return (model(rows.inputs) - rows.targets).square().sum() / (ROWS * SHAPE.hidden)


def sum_over_ranks(share: Tensor) -> Tensor:
    return mean_over_ranks(share) * HERE.cards


def whole_step(model: Stack, rows: Batch) -> Tensor:
    """On one card: backward of the error and of what balances; gives the error."""
    error = squared_error(model, rows)
    routings = [layer.moe.routing for layer in model.layers]
    (error + BALANCE * sum(balancing_loss(one.scores, one.experts) for one in routings)).backward()
    return error.detach()


def adjust_whole(model: Stack) -> None:
    for layer in model.layers:
        layer.moe.router.adjust(layer.moe.routing.experts)


def trained(engine: Any, world: World, options: dict[str, Any]) -> Track:
    model, mesh = divided(engine, world)
    layers = list(model.layers)
    named = make_regions(engine, model, options)

    def finish(model: nn.Module) -> None:
        engine.synchronize_moe_gradients(model, mesh, reduce_op_type="sum")
        for layer in layers:
            engine.update_expert_bias(layer.moe, device_mesh=mesh)
        assert all(layer.moe.expert_bias.any() for layer in layers)

    return train(
        model,
        mine(world),
        squared_error,
        optimizer=optimizer,
        average=sum_over_ranks,
        before_update=finish,
        params=lambda: named,
    )


@contract("IX-19")
@each_region
def test_assignments_are_counted_once(engine, world, options):
    """Backward, in which a region runs again, leaves the counts of forward: each assignment once."""
    model, _ = divided(engine, world)
    layers, runs = [layer.moe for layer in model.layers], []
    for layer in layers:
        layer.register_forward_pre_hook(lambda module, _: runs.append(module))
    make_regions(engine, model, options)
    error = squared_error(model, mine(world)[0])
    chosen = [layer.routing.experts.flatten().bincount(minlength=SHAPE.experts).float() for layer in layers]
    error.backward()
    assert len(runs) == 2 * LAYERS
    assert_equal([layer.tokens_per_expert for layer in layers], chosen, what="counts of assignments by layer")


@contract("IX-19")
@each_region
def test_trains_as_a_single_card_does(engine, world, ledger, options):
    """Loss, norm, gradients and parameters of three steps are the single card's, with the bias that follows the load
    and a balancing loss that counts once.
    """
    baseline = train_baseline(
        build(lambda: Stack(Plain() for _ in range(LAYERS)), 0).to(world.device),
        batches(world),
        whole_step,
        optimizer=optimizer,
        backward=None,
        before_update=adjust_whole,
    )
    assert_parity(trained(engine, world, options), baseline, ledger["ac_ep_fp32"])


@contract("IX-19")
@each_region
def test_routing_repeats(engine, world, options):
    """A region's second run chooses what its first chose, with the same weights, where the tokens are drawn in it."""
    layer = build(lambda: nn.Sequential(nn.Dropout(0.5), expert_layer(engine)), 0).to(world.device)
    moe = layer[1]
    engine.ExpertParallel().apply(moe.experts, HERE.mesh(world))
    found: list[Routing] = []
    moe.experts.register_forward_pre_hook(lambda *_: found.append(moe.routing))
    tokens = mine(world)[0].inputs.requires_grad_()
    engine.checkpoint_wrapper(layer, **options)(tokens).square().sum().backward()
    first, second = ([one.detach() for one in routing] for routing in found)
    assert_equal(second, first, what="weights, experts and scores of the second run")


@contract("IX-19")
@each_region
def test_life_cycle_is_closed(engine, world, options):
    """After a step nothing of a region's second run is left: no hook, no transfer, no tensor."""
    model, mesh = divided(engine, world)
    layers = list(model.layers)
    update = optimizer([one for _, one in make_regions(engine, model, options)])
    rows = mine(world)[0]

    def backward() -> None:
        squared_error(model, rows).backward()
        engine.synchronize_moe_gradients(model, mesh, reduce_op_type="sum")
        for layer in layers:
            # It is there for losses, and after the second run the end of a graph that no backward goes through.
            layer.moe.routing = None

    assert_closed(backward, update, model)

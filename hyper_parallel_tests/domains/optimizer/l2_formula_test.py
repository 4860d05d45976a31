"""Steps of whole tensors against the formulas, which PyTorch's own optimizers are no part of."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from hyper_parallel_tests.domains.optimizer.reference import adamw_steps, muon_directions, muon_size
from hyper_parallel_tests.harness import World, assert_close, contract
from hyper_parallel_tests.models.seeding import generator

SHAPE, STEPS = (4, 6), 3
ADAMW = {"lr": 0.1, "betas": (0.8, 0.95), "eps": 1e-3, "weight_decay": 0.2}
MUON = {"lr": 0.1, "weight_decay": 0.2, "matched_adamw_rms": 0.3}


def given(world: World, seed: int, *shape: int) -> Tensor:
    """Normal numbers in double precision."""
    return torch.randn(shape or SHAPE, generator=generator(seed), dtype=torch.float64).to(world.device)


def well_conditioned(world: World, seed: int, shape: tuple[int, int]) -> Tensor:
    """A matrix whose singular values lie between one and two."""
    left, _, right = torch.linalg.svd(given(world, seed, *shape), full_matrices=False)
    return left @ torch.diag(torch.linspace(1, 2, min(shape), dtype=torch.float64, device=world.device)) @ right


def stepped(optimizer: torch.optim.Optimizer, parameter: nn.Parameter, grads: list[Tensor | None]) -> list[Tensor]:
    """The parameter after each step."""
    found = []
    for grad in grads:
        parameter.grad = None if grad is None else grad.clone()
        optimizer.step()
        found.append(parameter.detach().clone())
    return found


@contract("OP-2-01")
@pytest.mark.parametrize("setting", [{}, {"weight_decay": 0.0}, {"betas": (0.0, 0.0)}], ids=["all", "no_decay", "bare"])
def test_adamw(engine, world, ledger, setting):
    """Decay is of the parameter itself, once, and both averages are corrected for their start."""
    options = ADAMW | setting
    parameter = nn.Parameter(given(world, 0))
    grads = [given(world, 1 + step) for step in range(STEPS)]
    found = stepped(engine.AdamW([parameter], **options), parameter, grads)
    assert_close(found, adamw_steps(given(world, 0), grads, **options), ledger["update_fp64"], what="parameter")


@contract("OP-2-01")
def test_adamw_counts_each_parameters_steps(engine, world, ledger):
    """A parameter that gets its first gradient late is corrected as in its own first step."""
    early, late = nn.Parameter(given(world, 0)), nn.Parameter(given(world, 9))
    optimizer = engine.AdamW([early, late], **ADAMW)
    grads = [None, given(world, 2), None, given(world, 3)]
    found = []
    for grad in grads:
        early.grad, late.grad = given(world, 1), grad
        optimizer.step()
        found.append(late.detach().clone())
    assert_close(found, adamw_steps(given(world, 9), grads, **ADAMW), ledger["update_fp64"], what="the late parameter")


@contract("OP-2-01")
@pytest.mark.parametrize("kind", ["AdamW", "Muon"])
def test_steps_without_a_gradient(engine, world, ledger, kind):
    """A step without a gradient, in the middle of a training, leaves a parameter and its state alone."""
    parameter, other = nn.Parameter(given(world, 0)), nn.Parameter(given(world, 0))
    grads = [given(world, 1), None, None, given(world, 2)]
    found = stepped(getattr(engine, kind)([parameter]), parameter, grads)
    first, last = stepped(getattr(engine, kind)([other]), other, [grad for grad in grads if grad is not None])
    assert_close(found, [first, first, first, last], ledger["exact"], what="parameter")


@contract("OP-2-01")
@pytest.mark.parametrize("kind", ["AdamW", "Muon"])
def test_closure(engine, world, ledger, kind):
    """A closure is called once a step, before it and with gradients on, and its loss is what the step gives."""
    parameter, other = nn.Parameter(given(world, 0)), nn.Parameter(given(world, 0))
    optimizer, losses = getattr(engine, kind)([parameter]), []

    def closure() -> Tensor:
        optimizer.zero_grad()
        losses.append((parameter**2).sum())
        if losses[-1].requires_grad:
            losses[-1].backward()
        return losses[-1]

    given_back = []
    with torch.no_grad():
        for _ in range(STEPS):
            given_back.append(optimizer.step(closure))
    assert given_back == losses
    assert len(losses) == STEPS
    expected = stepped_by_hand(getattr(engine, kind)([other]), other)
    assert_close(parameter.detach(), expected, ledger["exact"], what="parameter")


def stepped_by_hand(optimizer: torch.optim.Optimizer, parameter: nn.Parameter) -> Tensor:
    """The parameter after steps down its own square."""
    for _ in range(STEPS):
        optimizer.zero_grad()
        (parameter**2).sum().backward()
        optimizer.step()
    return parameter.detach()


OWN = {
    "AdamW": {"lr": 0.03, "weight_decay": 0.5, "betas": (0.5, 0.7), "eps": 0.1},
    "Muon": {
        "lr": 0.03,
        "weight_decay": 0.5,
        "matched_adamw_rms": 0.6,
        "momentum": 0.4,
        "nesterov": False,
        "ns_steps": 2,
    },
}
OWN_NAMES = [(kind, name) for kind, options in OWN.items() for name in options]


@contract("OP-2-01")
@pytest.mark.parametrize(("kind", "name"), OWN_NAMES, ids=map("-".join, OWN_NAMES))
def test_option_of_a_group(engine, world, ledger, kind, name):
    """A group that has an option of its own steps by it, and the other one by that of all."""
    make, options, own = getattr(engine, kind), {"lr": 0.1, "weight_decay": 0.2}, {name: OWN[kind][name]}
    grouped = [nn.Parameter(given(world, seed)) for seed in range(2)]
    alone = [nn.Parameter(given(world, seed)) for seed in range(2)]
    optimizers = [make([{"params": grouped[:1]}, {"params": grouped[1:]} | own], **options)]
    optimizers += [make(alone[:1], **options), make(alone[1:], **(options | own))]
    for step in range(STEPS):
        for seed, (one, other) in enumerate(zip(grouped, alone, strict=True)):
            one.grad, other.grad = given(world, 10 * step + seed), given(world, 10 * step + seed)
        for optimizer in optimizers:
            optimizer.step()
    assert_close(grouped, alone, ledger["exact"], what="parameter")


@contract("OP-2-01")
@pytest.mark.parametrize("shape", [(4, 4), (3, 7), (7, 3), (1, 5)], ids=lambda one: "x".join(map(str, one)))
@pytest.mark.parametrize("nesterov", [True, False], ids=["nesterov", "plain"])
def test_muon(engine, world, ledger, shape, nesterov):
    """Each step goes along the orthogonalised momentum, as far as the sides say, from the decayed parameter."""
    options: dict[str, Any] = {"momentum": 0.5, "nesterov": nesterov, "ns_steps": 5}
    parameter = nn.Parameter(given(world, 0, *shape))
    # Of one direction, so that their averages are as well conditioned; the last one turns Nesterov's step and no other.
    grads = [well_conditioned(world, 1, shape) * scale for scale in (1.0, 3.0, -1.5)]
    before, directions = parameter.detach().clone(), []
    for after in stepped(engine.Muon([parameter], **MUON, **options), parameter, grads):
        size = muon_size(parameter.shape, MUON["lr"], MUON["matched_adamw_rms"])
        directions.append((before * (1 - MUON["lr"] * MUON["weight_decay"]) - after) / size)
        before = after
    assert_close(directions, muon_directions(grads, **options), ledger["orthogonal_bf16"], what="direction")

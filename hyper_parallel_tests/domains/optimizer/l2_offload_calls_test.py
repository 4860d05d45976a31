"""Calls of which some trainings make some: clearing in part or to zeros, closures, schedules, taking offload off."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from hyper_parallel_tests.domains.optimizer.network import Network, batch, loss, network
from hyper_parallel_tests.domains.optimizer.offload import EVERYTHING, Offloaded
from hyper_parallel_tests.harness import World, assert_close, contract


def backward(model: Network, seed: int) -> None:
    loss(model, batch(seed).to(model.frozen.weight.device)).backward()


def clears_one_optimizer(owner: str) -> Callable[[Network, Any], None]:
    """Of one optimizer's parameters the gradients of both backwards count, of the other's those of the second."""

    def script(model: Network, chain: Any) -> None:
        backward(model, 0)
        chain.optimizers_dict[owner].zero_grad()
        backward(model, 1)
        chain.step()

    return script


def clears_to_zeros(model: Network, clear: Callable[..., None], step: Callable[[], None]) -> None:
    """Steps by gradients that are zeros: parameters decay, and go on along their momentum."""
    backward(model, 0)
    step()
    for cleared_after in ("step", "backward"):
        if cleared_after == "backward":
            backward(model, 1)
        clear(set_to_none=False)
        step()


def clears_to_zeros_by_model(model: Network, chain: Any) -> None:
    clears_to_zeros(model, model.zero_grad, chain.step)


def clears_to_zeros_by_optimizers(model: Network, chain: Any) -> None:
    clears_to_zeros(model, chain.zero_grad, chain.step)


def steps_by_closures(model: Network, chain: Any) -> None:
    """Each optimizer's step makes its own passes."""
    losses = []
    for seed, optimizer in enumerate([*chain.optimizers_dict.values()] * 2):

        def closure(seed: int = seed) -> Tensor:
            model.zero_grad()
            backward(model, seed)
            return torch.tensor(float(seed))

        losses.append(optimizer.step(closure))
    assert losses == [torch.tensor(float(seed)) for seed in range(4)]


def follows_a_schedule(model: Network, chain: Any) -> None:
    """A schedule that is made when all is offloaded halves the learning rates."""
    optimizers = chain.optimizers_dict.values()
    schedules = [torch.optim.lr_scheduler.ExponentialLR(one, 0.5) for one in optimizers]
    for seed in range(3):
        model.zero_grad()
        backward(model, seed)
        chain.step()
        for one in schedules:
            one.step()


SCRIPTS: dict[str, Callable[[Network, Any], None]] = {
    "clears_muon": clears_one_optimizer("muon"),
    "clears_adamw": clears_one_optimizer("adamw"),
    "clears_to_zeros_by_model": clears_to_zeros_by_model,
    "clears_to_zeros_by_optimizers": clears_to_zeros_by_optimizers,
    "closures": steps_by_closures,
    "schedule": follows_a_schedule,
}


@contract("OP-2-02")
@pytest.mark.parametrize("what", [EVERYTHING, ("parameters",), ("gradients",)], ids="-".join)
@pytest.mark.parametrize("script", SCRIPTS.values(), ids=SCRIPTS)
def test_script(engine, world, ledger, script, what):
    """What comes of it is what comes of it on the device, bit by bit."""
    run, plain = Offloaded(engine, network(device=world.device), what), network(device=world.device)
    script(run.model, run.chain)
    script(plain, Offloaded(engine, plain, ()).chain)
    assert_close(run.model.state_dict(), plain.state_dict(), ledger["exact"], what="parameters")


def gradients(model: Network) -> dict[str, Tensor]:
    return {name: one.grad for name, one in model.named_parameters() if one.grad is not None}


@contract("OP-2-02")
def test_end_between_forward_and_backward(engine, world, ledger):
    """Taken off within a pass, parameters and gradients are on the device from then on, also behind its backward."""
    run, plain = Offloaded(engine, network(device=world.device), EVERYTHING[:2]), network(device=world.device)
    rows = batch(0).to(world.device)
    given = loss(run.model, rows)
    run.handle.remove()
    given.backward()
    loss(plain, rows).backward()
    assert_close(dict(run.model.named_parameters()), dict(plain.named_parameters()), ledger["exact"], what="parameters")
    assert_close(gradients(run.model), gradients(plain), ledger["exact"], what="gradients")


@contract("OP-2-02")
def test_nothing_is_left(engine, world: World):
    """Taken off, it has left nothing on the model and the optimizer."""
    model = network(device=world.device)
    optimizer = engine.AdamW(model.parameters())
    before = [(copy.copy(vars(one)), sorted(vars(one))) for one in (model, optimizer)]
    engine.selective_offload(model, optimizer, parameters=lambda *_: True, gradients=lambda *_: True).remove()
    assert [sorted(vars(one)) for one in (model, optimizer)] == [names for _, names in before]
    for module in model.modules():
        assert not module._forward_hooks
        assert not module._forward_pre_hooks
    assert not [name for name, one in model.named_parameters() if one._post_accumulate_grad_hooks]

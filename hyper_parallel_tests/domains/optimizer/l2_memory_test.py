"""Bytes that the device holds while parts of a training are on the host, counted in storages."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from hyper_parallel_tests.domains.optimizer.network import MATRICES, Network, batch, loss, network
from hyper_parallel_tests.domains.optimizer.offload import EVERYTHING, SELECTIONS, Offloaded, Residents
from hyper_parallel_tests.harness import contract, trace
from hyper_parallel_tests.models.mlp import mlp, mlp_batch, mlp_loss

WITH_NOTHING = {"nothing": ()} | SELECTIONS

each_selection = pytest.mark.parametrize("what", WITH_NOTHING.values(), ids=WITH_NOTHING)


def sizes(model: nn.Module) -> dict[str, int]:
    """Bytes of each parameter."""
    return {name: one.numel() * one.element_size() for name, one in model.named_parameters()}


def stepped(model: nn.Module) -> list[str]:
    """Parameters that have a gradient in each step."""
    return [name for name, one in model.named_parameters() if one.requires_grad and "unused" not in name]


def state_of(name: str, size: int) -> int:
    """Bytes of a parameter's optimizer state without the count of steps."""
    return size if name in MATRICES else 2 * size


def backward(model: Network, seed: int) -> None:
    loss(model, batch(seed).to(next(model.parameters()).device)).backward()


@contract("OP-2-02")
@each_selection
def test_between(engine, world, what):
    """Behind backward, and behind the step, the device holds what was not chosen and no more."""
    model = network(device=world.device)
    residents, size, own = Residents(model), sizes(model), stepped(model)
    gradients = 0 if "gradients" in what else sum(size[name] for name in own)
    state = 0 if "state" in what else sum(state_of(name, size[name]) for name in own)
    run = Offloaded(engine, model, what)
    with trace.made(world.device) as made:
        for seed in range(2):
            run.chain.zero_grad()
            backward(model, seed)
            assert made.held() == gradients + (state if seed else 0)
            assert residents.bytes() == ({} if "parameters" in what else size)
            run.chain.step()
            run.chain.zero_grad()
            assert made.held() == state
            assert residents.bytes() == ({} if "parameters" in what else size)


@contract("OP-2-02")
def test_chosen_ones(engine, world):
    """Of some layers, only those leave; of one average, only that; of small state, none."""
    model = network(device=world.device)
    residents, size, own = Residents(model), sizes(model), stepped(model)
    chosen = [name for name in size if name.startswith("up.")]
    options = {"min_numel": 20, "state_keys": ("exp_avg", "momentum_buffer")}
    run = Offloaded(engine, model, EVERYTHING, chosen=lambda name, _: name in chosen, **options)
    away = sum(size[name] for name in own if size[name] >= 20 * 4)
    with trace.made(world.device) as made:
        backward(model, 0)
        assert made.held() == sum(size[name] for name in own if name not in chosen)
        run.chain.step()
        run.chain.zero_grad()
        assert made.held() == sum(state_of(name, size[name]) for name in own) - away
    assert residents.bytes() == {name: one for name, one in size.items() if name not in chosen}


class Sampled(torch.optim.AdamW):
    """AdamW that notes what the device holds of a step as each of its batches begins."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.made: trace.Made | None = None
        self.samples: list[int] = []

    def step(self, closure: Any = None) -> None:
        if self.made is not None:
            self.samples.append(self.made.held())
        super().step(closure)


NEIGHBOURS = {1: [4], 2: [4, 2], 4: [2, 2, 2, 1], 9: [2, 2, 2, 1]}


@contract("OP-2-02")
@pytest.mark.parametrize(("batches", "held"), NEIGHBOURS.items(), ids=NEIGHBOURS)
def test_batches(engine, world, batches, held):
    """During a step the state of the batch and of the next one is on the device, and no other."""
    parameters = [nn.Parameter(torch.ones(3, 5, device=world.device)) for _ in range(4)]
    optimizer = Sampled(parameters)
    swapped = engine.swap_optimizer(optimizer, engine.SwapOptimizerConfig(swap_times=batches, min_numel=0))
    for one in parameters:
        one.grad = torch.ones_like(one)
    with trace.made(world.device) as made:
        swapped.step()
        optimizer.made = made
        swapped.step()
    one_state = 2 * trace.size_of(3, 5)
    assert optimizer.samples == [number * one_state for number in held]


@contract("OP-2-02")
def test_at_each_layers_turn(engine, world):
    """In forward and backward the device holds the parameters of the layer whose turn it is."""
    model = mlp(5).to(world.device)
    residents, seen = Residents(model), []

    def note(layer: str) -> None:
        seen.append((layer, set(residents.bytes())))

    for number, layer in enumerate(model.layers):
        for one in layer.parameters():
            one.register_post_accumulate_grad_hook(lambda _, number=number: note(f"layers.{number}"))
    optimizer = engine.AdamW(model.parameters())
    engine.selective_offload(model, optimizer, parameters=lambda *_: True)
    for number, layer in enumerate(model.layers):
        layer.register_forward_pre_hook(lambda *_, number=number: note(f"layers.{number}"))
    assert not residents.bytes()
    mlp_loss(model, mlp_batch(0, 4, 5).to(world.device)).backward()
    assert {layer for layer, _ in seen} == {f"layers.{number}" for number in range(3)}
    for layer, found in seen:
        assert found, layer
        assert found <= {f"{layer}.weight", f"{layer}.bias"}, layer
    assert not residents.bytes()


@contract("OP-2-02")
def test_copies(engine, world):
    """In each step the state of all batches goes to the host and back once, byte by byte."""
    model = network(device=world.device)
    size, own = sizes(model), stepped(model)
    run = Offloaded(engine, model, ("state",))
    backward(model, 0)
    run.chain.step()
    with engine.watch_swap_copies() as copies:
        run.chain.step()
    moved = sum(state_of(name, size[name]) for name in own)
    for direction in ("offload", "load"):
        assert sum(number for way, number in copies if way == direction) == moved, direction

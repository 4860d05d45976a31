"""Bytes that the device holds when a pass or a step has failed, and behind other calls; and those of the host."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from hyper_parallel_tests.domains.optimizer.network import batch, loss, network
from hyper_parallel_tests.domains.optimizer.offload import EVERYTHING, Offloaded, Residents, all_of_them, stumble
from hyper_parallel_tests.harness import World, assert_close, contract, trace


class Failing(torch.optim.AdamW):
    """AdamW of which one call fails, before it has stepped its parameters or behind it."""

    def __init__(self, parameters: Any, when: str) -> None:
        super().__init__(parameters)
        self.calls, self.fails_at, self.when = 0, -1, when

    def step(self, closure: Any = None) -> None:
        self.calls += 1
        if self.calls == self.fails_at and self.when == "before":
            raise ZeroDivisionError
        super().step(closure)
        if self.calls == self.fails_at:
            raise ZeroDivisionError


def same_parameters(world: World) -> list[nn.Parameter]:
    """Four of one size, with gradients."""
    found = [nn.Parameter(torch.full((3, 5), number + 1.0, device=world.device)) for number in range(4)]
    for one in found:
        one.grad = one.detach().sin()
    return found


@contract("OP-2-02")
@pytest.mark.parametrize(("when", "stepped"), [("before", 1), ("behind", 2)], ids=["before", "behind"])
def test_failed_batch(engine, world, ledger, when, stepped):
    """A step that fails within its second batch leaves all state on the host, as it is, and the next one is right."""
    parameters, others = same_parameters(world), same_parameters(world)
    optimizer, expected = Failing(parameters, when), torch.optim.AdamW(others)
    swapped = engine.swap_optimizer(optimizer, engine.SwapOptimizerConfig(swap_times=4, min_numel=0))
    with trace.made(world.device) as made:
        swapped.step()
        # The second batch of the second step.
        optimizer.fails_at = 6
        with pytest.raises(ZeroDivisionError):
            swapped.step()
        assert made.held() == 0
    expected.step()
    grads = [one.grad for one in others]
    for one in others[stepped:]:
        one.grad = None
    expected.step()
    for one, grad in zip(others, grads, strict=True):
        one.grad = grad
    swapped.step()
    expected.step()
    assert_close(parameters, others, ledger["exact"], what="parameters")


@contract("OP-2-02")
@pytest.mark.parametrize("when", ["before", "behind"])
def test_failed_step(engine, world, when):
    """A step that fails leaves no parameter on the device."""
    model = network(device=world.device)
    residents, optimizer = Residents(model), Failing(model.parameters(), when)
    engine.selective_offload(model, optimizer, parameters=all_of_them)
    loss(model, batch(0).to(world.device)).backward()
    optimizer.fails_at = 1
    with pytest.raises(ZeroDivisionError):
        optimizer.step()
    assert not residents.bytes()


@contract("OP-2-02")
@pytest.mark.parametrize("where", ["forward", "backward"])
def test_failed_pass(engine, world, where):
    """Nor does a pass that fails, once its gradients are cleared."""
    model = network(device=world.device)
    residents, run = Residents(model), Offloaded(engine, model, EVERYTHING)
    stumble(model, where)
    run.chain.zero_grad()
    assert not residents.bytes()


def evaluate(run: Offloaded) -> None:
    with torch.no_grad():
        run.model(batch(3).to(run.model.frozen.weight.device).inputs)


def drop_a_graph(run: Offloaded) -> None:
    run.model(batch(3).to(run.model.frozen.weight.device).inputs)


def save(run: Offloaded) -> None:
    run.model.state_dict()


def load(run: Offloaded) -> None:
    run.model.load_state_dict(run.model.state_dict())


def look(run: Offloaded) -> None:
    assert dict(run.handle.named_parameters())


CALLS: dict[str, Callable[[Offloaded], None]] = {
    one.__name__: one for one in (evaluate, drop_a_graph, save, load, look)
}


@contract("OP-2-02")
@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_other_calls(engine, world, call):
    """Behind other calls than a training's all parameters are on the host again, and read as NaN."""
    model = network(device=world.device)
    residents, run = Residents(model), Offloaded(engine, model, EVERYTHING)
    call(run)
    assert not residents.bytes()
    assert [name for name, one in model.named_parameters() if not one.isnan().all()] == []


@contract("OP-2-02")
@pytest.mark.parametrize("loads", [False, True], ids=["saved", "loaded"])
def test_state_dict(engine, world, loads):
    """State is on the device while somebody has the state dict, and no longer."""
    parameters = same_parameters(world)
    # Without counts of steps.
    optimizer = torch.optim.SGD(parameters, momentum=0.9)
    swapped = engine.swap_optimizer(optimizer, engine.SwapOptimizerConfig(min_numel=0))
    with trace.made(world.device) as made:
        swapped.step()
        saved = swapped.state_dict()
        assert made.held() == len(parameters) * trace.size_of(3, 5)
        if loads:
            swapped.load_state_dict(saved)
        del saved
        assert made.held() == 0


@contract("OP-2-02")
def test_state_that_is_there(engine, world):
    """State of steps before leaves at once, and what the settings keep does not."""
    parameters = [nn.Parameter(torch.ones(shape, device=world.device)) for shape in [(32, 32), (31, 33)]]
    for one in parameters:
        one.grad = torch.ones_like(one)
    with trace.made(world.device) as made:
        optimizer = engine.AdamW(parameters)
        optimizer.step()
        before = made.held()
        engine.swap_optimizer(optimizer)
        # Unless told otherwise, tensors of 1024 elements and more, of any name.
        assert before - made.held() == 2 * trace.size_of(32, 32)


STEPS, WIDTH = 4, 1024


def resident_bytes() -> int:
    """Of this process."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE")


@contract("OP-2-02")
def test_host_memory(engine, world):
    """The host's memory does not grow with each few steps, not by one copy of anything in each step."""
    model = nn.Linear(WIDTH, WIDTH, bias=False, device=world.device)
    optimizer = engine.swap_optimizer(engine.AdamW(model.parameters()))
    engine.selective_offload(model, optimizer, parameters=all_of_them, gradients=all_of_them)
    inputs = torch.ones(1, WIDTH, device=world.device)

    def train() -> int:
        for _ in range(STEPS):
            for _ in range(2):
                model(inputs).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
        return resident_bytes()

    resident = [train() for _ in range(4)]
    # What is piled up is so each time; the allocator takes some megabytes more now and then, whatever runs.
    grown = min(later - earlier for earlier, later in itertools.pairwise(resident))
    assert grown < STEPS * trace.size_of(WIDTH, WIDTH) // 2

"""Modules with distributed parameters: hooks, and what a direct call of forward leaves out."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from hyper_parallel_tests.domains.dtensor.setting import Product, numbers, on, placed
from hyper_parallel_tests.harness import assert_equal, contract


def by_columns(engine, mesh, calls: list[str]) -> nn.Module:
    """`Product` distributed by columns, whose hooks turn plain tensors into distributed ones and back."""

    def partition(name, module, mesh):
        weight = on(engine, mesh, module.weight.detach(), "S1")
        module.register_parameter("weight", nn.Parameter(weight))

    def before(module, inputs, mesh):
        calls.append("input")
        return tuple(engine.from_local(one, mesh, placed(engine, "R")) for one in inputs)

    def after(module, output, mesh):
        calls.append("output")
        return engine.redistribute(output, mesh, placed(engine, "R")).to_local()

    return engine.distribute_module(Product(numbers(4, 8, seed=1)), mesh, partition, before, after)


@contract("DT-1-04")
def test_call_runs_the_input_and_output_functions(engine, world):
    """`module(input)` takes and gives plain tensors: each function runs once, the input's first."""
    calls: list[str] = []
    module = by_columns(engine, world.mesh(tp=world.size), calls)
    output = module(numbers(6, 4))
    assert calls == ["input", "output"]
    assert not isinstance(output, engine.DTensor)
    assert_equal(output.detach(), numbers(6, 4) @ numbers(4, 8, seed=1), what="output")


@contract("DT-1-04")
def test_direct_forward_of_plain_tensors_is_an_error(engine, world):
    """`module.forward(input)` runs no function, so a plain input meets the distributed weight: the error names it."""
    calls: list[str] = []
    module = by_columns(engine, world.mesh(tp=world.size), calls)
    with pytest.raises((RuntimeError, ValueError), match=r"mm|matmul"):
        module.forward(numbers(6, 4))
    assert calls == []


@contract("DT-1-04")
def test_direct_forward_of_distributed_tensors(engine, world):
    """`module.forward(input)` of a distributed input computes with what it is given, and gives it as it lies."""
    calls: list[str] = []
    mesh = world.mesh(tp=world.size)
    output = by_columns(engine, mesh, calls).forward(on(engine, mesh, numbers(6, 4), "R"))
    assert calls == []
    assert list(output.placements) == placed(engine, "S1")
    assert_equal(output.full_tensor().detach(), numbers(6, 4) @ numbers(4, 8, seed=1), what="output")


@contract("DT-1-04")
def test_hooks_see_distributed_tensors(engine, world):
    """Hooks run once a call, in their order, and see the distributed input and output; forward alone runs none."""
    mesh = world.mesh(tp=world.size)
    module = Product(numbers(4, 8, seed=1))
    module.weight = nn.Parameter(on(engine, mesh, module.weight.detach(), "S1"))
    seen = []
    module.register_forward_pre_hook(lambda module, inputs: seen.append(("before", inputs[0].placements)))
    module.register_forward_hook(lambda module, inputs, output: seen.append(("after", output.placements)))
    module(on(engine, mesh, numbers(6, 4), "R"))
    replicated, columns = placed(engine, "R"), placed(engine, "S1")
    assert [(when, list(found)) for when, found in seen] == [("before", replicated), ("after", columns)]
    module.forward(on(engine, mesh, numbers(6, 4), "R"))
    assert len(seen) == 2


@contract("DT-1-04")
def test_what_is_not_partitioned_is_replicated(engine, world):
    """Parameters and buffers that the partition function leaves plain become replicated, and train or not as before."""
    mesh = world.mesh(tp=world.size)
    module = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))
    module[0].bias.requires_grad_(False)
    returned = engine.distribute_module(module, mesh)
    assert returned is module
    named = dict(module.named_parameters()) | dict(module.named_buffers())
    assert {name: list(one.placements) for name, one in named.items()} == dict.fromkeys(named, placed(engine, "R"))
    assert [name for name, one in module.named_parameters() if not one.requires_grad] == ["0.bias"]


@contract("DT-1-04")
def test_partition_function_sees_every_module(engine, world):
    """The partition function is called with the dotted name of every module, each once."""
    names: list[str] = []
    module = nn.Sequential(nn.Linear(4, 4), nn.Sequential(nn.Linear(4, 4), nn.ReLU()))
    engine.distribute_module(module, world.mesh(tp=world.size), lambda name, module, mesh: names.append(name))
    assert sorted(names) == ["", "0", "1", "1.0", "1.1"]


@contract("DT-1-04")
def test_gradient_through_the_functions(engine, world):
    """A plain input gets its gradient through both functions, and the weight its own where it lies."""
    mesh = world.mesh(tp=world.size)
    module = by_columns(engine, mesh, [])
    batch = numbers(6, 4).requires_grad_()
    module(batch).backward(numbers(6, 8, seed=2))
    weight = numbers(4, 8, seed=1)
    assert_equal(batch.grad, numbers(6, 8, seed=2) @ weight.T, what="gradient of the input")
    assert_equal(engine.full_gradient(module.weight), numbers(6, 4).T @ numbers(6, 8, seed=2), what="gradient")
    assert isinstance(torch.relu(module.weight), engine.DTensor)

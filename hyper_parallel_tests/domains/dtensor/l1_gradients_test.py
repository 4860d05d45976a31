"""Where gradients of distributed tensors lie, and that they flow in and out."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from hyper_parallel_tests.domains.dtensor.setting import numbers, on, placed
from hyper_parallel_tests.harness import assert_equal, contract

# Placement of the parameter and of what it is multiplied by, input @ parameter.
PRODUCTS = [
    pytest.param("S1", "R", id="by_columns"),
    pytest.param("S0", "S1", id="by_rows"),
    pytest.param("R", "R", id="replicated"),
    pytest.param("R", "S0", id="replicated_parameter_of_a_divided_batch"),
    pytest.param("S0", "R", id="divided_parameter_of_a_replicated_batch"),
]


@contract("DT-1-02")
@pytest.mark.parametrize(("kind", "by"), PRODUCTS)
def test_gradient_lies_as_its_parameter(engine, world, kind, by):
    """The gradient of a parameter is a distributed tensor of the parameter's mesh and placements."""
    mesh, full, batch = world.mesh(tp=world.size), numbers(8, 4), numbers(4, 8, seed=1)
    parameter = nn.Parameter(on(engine, mesh, full, kind))
    engine.backward(torch.matmul(on(engine, mesh, batch, by), parameter), torch.ones(4, 4))
    assert isinstance(parameter.grad, engine.DTensor)
    assert list(parameter.grad.placements) == placed(engine, kind)
    assert parameter.grad.device_mesh == mesh
    assert tuple(parameter.grad.to_local().shape) == tuple(parameter.to_local().shape)


@contract("DT-1-02")
@pytest.mark.parametrize(("kind", "by"), PRODUCTS)
def test_gradient_is_that_of_the_full_parameter(engine, world, kind, by):
    """Whatever the placements, the gradient in full is the one of the plain product, also when it accumulates."""
    mesh, full, batch = world.mesh(tp=world.size), numbers(8, 4), numbers(4, 8, seed=1)
    parameter = nn.Parameter(on(engine, mesh, full, kind))
    for times in (1, 2):
        engine.backward(torch.matmul(on(engine, mesh, batch, by), parameter), numbers(4, 4, seed=2))
        wanted = times * batch.T @ numbers(4, 4, seed=2)
        assert_equal(engine.full_gradient(parameter), wanted, what=f"gradient after {times} passes")


@contract("DT-1-02")
@pytest.mark.parametrize("kind", ["R", "S0", "S1"])
def test_gradient_through_to_local(engine, world, kind):
    """What flows back into the local part is the gradient of that part."""
    mesh, full = world.mesh(tp=world.size), numbers(8, 4)
    tensor = on(engine, mesh, full, kind).requires_grad_()
    weight = on(engine, mesh, numbers(8, 4, seed=1), kind).to_local()
    (tensor.to_local() * weight).sum().backward()
    grad = tensor.grad.to_local() if isinstance(tensor.grad, engine.DTensor) else tensor.grad
    assert_equal(grad, weight, what="gradient of the local part")


@contract("DT-1-02")
@pytest.mark.parametrize("kind", ["S0", "S1"])
def test_gradient_through_from_local(engine, world, kind):
    """The gradient of a plain tensor that became a part is its part of the full gradient."""
    mesh, full, weight = world.mesh(tp=world.size), numbers(8, 4), numbers(8, 4, seed=1)
    local = on(engine, mesh, full, kind).to_local().clone().requires_grad_()
    tensor = engine.from_local(local, mesh, placed(engine, kind))
    engine.backward(tensor * on(engine, mesh, weight, kind), torch.ones(8, 4))
    assert not isinstance(local.grad, engine.DTensor)
    assert_equal(local.grad, on(engine, mesh, weight, kind).to_local(), what="gradient of the plain tensor")


@contract("DT-1-02")
def test_gradient_of_a_term(engine, world):
    """Each term of a sum gets the whole gradient, wherever the sum goes."""
    mesh, weight = world.mesh(tp=world.size), numbers(8, 4, seed=1)
    for kind in ("R", "S0"):
        local = numbers(8, 4, seed=world.rank).requires_grad_()
        total = engine.redistribute(engine.from_local(local, mesh, placed(engine, "P")), mesh, placed(engine, kind))
        engine.backward(total, weight)
        assert_equal(local.grad, weight, what=f"gradient of a term by {kind}")


@contract("DT-1-02")
@pytest.mark.parametrize("kind", ["R", "S0", "S1", "P"])
def test_detach_keeps_placement_and_memory(engine, world, kind):
    """A detached tensor has placements and mesh, needs no gradient, and shares the local part."""
    mesh = world.mesh(tp=world.size)
    tensor = on(engine, mesh, numbers(8, 4), kind).requires_grad_()
    detached = tensor.detach()
    assert isinstance(detached, engine.DTensor)
    assert list(detached.placements) == placed(engine, kind)
    assert not detached.requires_grad
    assert detached.to_local().data_ptr() == tensor.to_local().data_ptr()


@contract("DT-1-02")
@pytest.mark.parametrize("name", ["add_", "mul_", "zero_", "fill_", "copy_"])
def test_operations_in_place_keep_placement(engine, world, name):
    """A change in place reaches the tensor itself and leaves it where it lies."""
    mesh, full = world.mesh(tp=world.size), numbers(8, 4)
    change = {
        "add_": lambda tensor, other: tensor.add_(other),
        "mul_": lambda tensor, other: tensor.mul_(other),
        "zero_": lambda tensor, other: tensor.zero_(),
        "fill_": lambda tensor, other: tensor.fill_(3),
        "copy_": lambda tensor, other: tensor.copy_(other),
    }[name]
    tensor = on(engine, mesh, full, "S0")
    part = tensor.to_local()
    assert change(tensor, on(engine, mesh, numbers(8, 4, seed=1), "S0")) is tensor
    assert list(tensor.placements) == placed(engine, "S0")
    assert tensor.to_local().data_ptr() == part.data_ptr()
    assert_equal(tensor.full_tensor(), change(full.clone(), numbers(8, 4, seed=1)), what=name)

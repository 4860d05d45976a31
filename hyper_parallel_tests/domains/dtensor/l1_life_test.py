"""A distributed tensor stays one: copied, saved, cleared of its gradient, and in an optimizer's hands."""

from __future__ import annotations

import copy
import io

import pytest
import torch
from torch import nn

from hyper_parallel_tests.domains.dtensor.setting import numbers, on, placed
from hyper_parallel_tests.harness import assert_close, assert_equal, contract

OPTIMIZERS = {
    "sgd": lambda params: torch.optim.SGD(params, lr=0.125, momentum=0.5),
    "adamw": lambda params: torch.optim.AdamW(params, lr=0.25, foreach=False),
    "adamw_foreach": lambda params: torch.optim.AdamW(params, lr=0.25, foreach=True),
}


def train(engine, parameters: list, optimizer, steps: int = 2) -> list:
    """Steps by the gradient of the sum of squares; plain or distributed parameters."""
    for _ in range(steps):
        optimizer.zero_grad()
        for parameter in parameters:
            square = parameter * parameter
            if isinstance(parameter, engine.DTensor):
                engine.backward(square, torch.ones(8, 4))
            else:
                square.backward(torch.ones(8, 4))
        optimizer.step()
    return parameters


@contract("DT-1-06")
def test_deepcopy(engine, world):
    """A deep copy has placements, mesh and values of the original, and memory of its own."""
    mesh = world.mesh(tp=world.size)
    for kind in ("R", "S0", "S1", "P"):
        tensor = on(engine, mesh, numbers(8, 4), kind)
        twin = copy.deepcopy(tensor)
        assert isinstance(twin, engine.DTensor)
        assert list(twin.placements) == placed(engine, kind)
        assert twin.device_mesh == mesh
        tensor.to_local().zero_()
        assert_equal(twin.full_tensor(), numbers(8, 4), what=f"copy of {kind}")


@contract("DT-1-06")
def test_deepcopy_of_a_module(engine, world):
    """A copied module has distributed parameters that need gradients and do not move with the original's."""
    module = nn.ParameterList([nn.Parameter(on(engine, world.mesh(tp=world.size), numbers(8, 4), "S0"))])
    twin = copy.deepcopy(module)
    assert isinstance(twin[0], nn.Parameter)
    assert isinstance(twin[0], engine.DTensor)
    assert twin[0].requires_grad
    with torch.no_grad():
        module[0].to_local().zero_()
    assert_equal(twin[0].full_tensor().detach(), numbers(8, 4), what="copy")


@contract("DT-1-06")
def test_saving_and_loading(engine, world):
    """What torch.save wrote is loaded as a distributed tensor with placements, mesh and values."""
    mesh, full = world.mesh(tp=world.size), numbers(8, 4)
    for kind in ("R", "S0", "S1"):
        file = io.BytesIO()
        torch.save({"weight": nn.Parameter(on(engine, mesh, full, kind))}, file)
        file.seek(0)
        loaded = torch.load(file, weights_only=False)["weight"]
        assert isinstance(loaded, engine.DTensor)
        assert list(loaded.placements) == placed(engine, kind)
        assert loaded.device_mesh == mesh
        assert loaded.requires_grad
        local = loaded.to_local().detach()
        assert_equal(engine.from_local(local, mesh, placed(engine, kind)).full_tensor(), full, what=f"loaded {kind}")


@contract("DT-1-06")
def test_requires_grad_and_clearing_gradients(engine, world):
    """Turning gradients on and off and clearing them works in place on the distributed tensor."""
    tensor = on(engine, world.mesh(tp=world.size), numbers(8, 4), "S0")
    assert not tensor.requires_grad
    assert tensor.requires_grad_() is tensor
    assert tensor.requires_grad
    engine.backward(tensor * 2, torch.ones(8, 4))
    assert tensor.grad is not None
    tensor.grad = None
    assert tensor.grad is None
    engine.backward(tensor * 3, torch.ones(8, 4))
    assert_equal(engine.full_gradient(tensor), torch.full((8, 4), 3.0), what="gradient after clearing")
    assert not tensor.requires_grad_(False).requires_grad
    assert isinstance(tensor, engine.DTensor)


@contract("DT-1-06")
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_optimizer_steps(engine, world, ledger, name):
    """An optimizer moves distributed parameters as it moves plain ones, and its state lies as they do."""
    mesh, kinds = world.mesh(tp=world.size), ("R", "S0", "S1")
    parameters = [nn.Parameter(on(engine, mesh, numbers(8, 4), kind)) for kind in kinds]
    optimizer = OPTIMIZERS[name]([{"params": parameters}])
    train(engine, parameters, optimizer)
    plain = nn.Parameter(numbers(8, 4))
    train(engine, [plain], OPTIMIZERS[name]([plain]))
    for kind, parameter, held in zip(kinds, parameters, optimizer.param_groups[0]["params"], strict=True):
        assert held is parameter
        assert isinstance(parameter, engine.DTensor)
        assert list(parameter.placements) == placed(engine, kind)
        moments = [one for one in optimizer.state[parameter].values() if isinstance(one, torch.Tensor) and one.ndim]
        assert moments
        assert all(isinstance(one, engine.DTensor) for one in moments)
        assert all(list(one.placements) == placed(engine, kind) for one in moments)
        assert_close(parameter.full_tensor().detach(), plain.detach(), ledger["fsdp_1d_fp32"], what=f"{kind} parameter")


@contract("DT-1-06")
@pytest.mark.parametrize("kind", ["R", "S0", "S1"])
def test_operations_past_the_dispatch(engine, world, ledger, kind):
    """Where dispatch is skipped an optimizer works on the parts: plain state, and the same parameters afterwards."""
    mesh = world.mesh(tp=world.size)
    parameter = nn.Parameter(on(engine, mesh, numbers(8, 4), kind))
    optimizer = OPTIMIZERS["adamw"]([parameter])
    engine.backward(parameter * numbers(8, 4, seed=1).abs().max(), torch.ones(8, 4))
    with engine.SkipDTensorDispatch():
        optimizer.step()
    plain = nn.Parameter(numbers(8, 4))
    (plain * numbers(8, 4, seed=1).abs().max()).sum().backward()
    OPTIMIZERS["adamw"]([plain]).step()
    moment = optimizer.state[parameter]["exp_avg"]
    assert not isinstance(moment, engine.DTensor)
    assert tuple(moment.shape) == tuple(parameter.to_local().shape)
    assert isinstance(parameter, engine.DTensor)
    assert_close(parameter.full_tensor().detach(), plain.detach(), ledger["fsdp_1d_fp32"], what="parameter")
    assert isinstance(torch.relu(parameter), engine.DTensor)

"""What operations on distributed tensors send: the expected collectives, and nothing that nobody asked for."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn
from torch.nn import functional

from hyper_parallel_tests.domains.dtensor.setting import numbers, on, placed
from hyper_parallel_tests.harness import assert_equal, contract, trace

# On a tensor of 8 x 4 numbers with this placement: nothing is sent.
SILENT = {
    "look_at": ("S0", lambda engine, x: (x.shape, x.dtype, x.placements, x.device_mesh, x.requires_grad, x.numel())),
    "to_local": ("S0", lambda engine, x: x.to_local()),
    "detach": ("S0", lambda engine, x: x.detach()),
    "clone": ("S0", lambda engine, x: x.clone()),
    "copy": ("S0", lambda engine, x: copy.deepcopy(x)),
    "element_by_element": ("S1", lambda engine, x: torch.relu(x * 2 + x)),
    "transpose": ("S0", lambda engine, x: x.transpose(0, 1)),
    "sum_to_terms": ("S0", lambda engine, x: x.sum()),
    "softmax_of_rows": ("S0", lambda engine, x: torch.softmax(x, 1)),
    "norm_of_rows": ("S0", lambda engine, x: functional.layer_norm(x, (4,))),
    "sum_of_terms": ("P", lambda engine, x: x * 2 + x),
    "cut": ("R", lambda engine, x: engine.redistribute(x, x.device_mesh, placed(engine, "S0"))),
}

# Operations that need their input otherwise: the one collective that brings it there.
IMPLICIT = {
    "softmax_over_the_divided": (["S1"], lambda x: torch.softmax(x, 1), "all_gather"),
    "norm_over_the_divided": (["S1"], lambda x: functional.layer_norm(x, (4,)), "all_gather"),
    "function_of_terms": (["P"], torch.relu, "all_reduce"),
    "product_of_rows_by_rows": (["S0", "S0"], lambda x, y: torch.matmul(x, y.transpose(0, 1)), "all_gather"),
}


def two_layers(engine, mesh):
    """Input, and weights of a first layer divided by columns and a second divided by rows."""
    first = nn.Parameter(on(engine, mesh, numbers(4, 8, seed=1), "S1"))
    second = nn.Parameter(on(engine, mesh, numbers(8, 4, seed=2), "S0"))
    return on(engine, mesh, numbers(6, 4), "R"), first, second


@contract("DT-1-03")
@pytest.mark.parametrize("name", SILENT)
def test_nothing_is_sent(engine, world, name):
    """What each rank can do by itself sends nothing."""
    kind, operation = SILENT[name]
    tensor = on(engine, world.mesh(tp=world.size), numbers(8, 4), kind)
    with trace.collectives() as sent:
        operation(engine, tensor)
    assert sent.lines() == []


@contract("DT-1-03")
@pytest.mark.parametrize("name", IMPLICIT)
def test_input_is_moved_once(engine, world, name):
    """An operation that cannot take its input as it lies costs one collective, and gives the full result."""
    kinds, operation, op = IMPLICIT[name]
    mesh, full = world.mesh(tp=world.size), [numbers(8, 4, seed=seed) for seed in range(len(kinds))]
    tensors = [on(engine, mesh, one, kind) for one, kind in zip(full, kinds, strict=True)]
    with trace.collectives() as sent:
        found = operation(*tensors)
    assert sent.ops() == [op]
    assert sent.ops(over=tuple(range(world.size))) == [op]
    assert tuple(found.shape) == tuple(operation(*full).shape)


@contract("DT-1-03")
def test_columns_then_rows_cost_one_reduction(engine, world):
    """Two layers, divided by columns and by rows, send nothing until their sum is asked for, which costs one."""
    mesh = world.mesh(tp=world.size)
    batch, first, second = two_layers(engine, mesh)
    with trace.collectives() as before:
        terms = torch.matmul(torch.relu(torch.matmul(batch, first)), second)
    with trace.collectives() as asked:
        total = engine.redistribute(terms, mesh, placed(engine, "R"))
    with trace.collectives() as backward:
        engine.backward(total, numbers(6, 4, seed=3))
    assert before.lines() == []
    assert asked.ops() == ["all_reduce"]
    full = torch.relu(numbers(6, 4) @ numbers(4, 8, seed=1)) @ numbers(8, 4, seed=2)
    assert_equal(total.to_local(), full, what="output")
    assert backward.ops() in ([], ["all_reduce"]), (
        "the sum's gradient goes to all terms as it is, or is summed of shares"
    )


@contract("DT-1-03")
def test_divided_batch_costs_nothing_until_the_loss(engine, world):
    """With the batch divided and the weight whole, forward sends nothing, and the loss in full one reduction."""
    mesh = world.mesh(dp=world.size)
    weight = nn.Parameter(on(engine, mesh, numbers(4, 2, seed=1), "R"))
    with trace.collectives() as forward:
        loss = torch.matmul(on(engine, mesh, numbers(8, 4), "S0"), weight).sum()
    with trace.collectives() as full:
        value = loss.full_tensor()
    assert forward.lines() == []
    assert full.ops() == ["all_reduce"]
    assert_equal(value.detach(), (numbers(8, 4) @ numbers(4, 2, seed=1)).sum(), what="loss")


@contract("DT-1-03")
@pytest.mark.parametrize(
    ("kind", "plan"), [("R", []), ("S0", ["all_gather"]), ("S1", ["all_gather"]), ("P", ["all_reduce"])]
)
def test_full_tensor_costs_its_redistribution(engine, world, kind, plan):
    """A tensor in full costs what making it replicated costs."""
    tensor = on(engine, world.mesh(tp=world.size), numbers(8, 4), kind)
    with trace.collectives() as sent:
        tensor.full_tensor()
    assert sent.ops() == plan


@contract("DT-1-03")
@pytest.mark.parametrize("kind", ["R", "S0", "S1", "P"])
def test_distribution_of_common_data_sends_nothing(engine, world, kind):
    """Data that every rank has is divided where it is; by default nothing is sent."""
    with trace.collectives() as sent:
        on(engine, world.mesh(tp=world.size), numbers(8, 4), kind)
    assert sent.lines() == []

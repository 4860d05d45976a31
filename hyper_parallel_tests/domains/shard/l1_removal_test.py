"""A plan applied again, replaced and taken off."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from torch import nn

from hyper_parallel_tests.domains.shard.networks import BLOCK_PLACEMENTS, block, block_plan, two_inputs, whole_output
from hyper_parallel_tests.domains.shard.setting import Defaults, hook_counts, kind_of, layout, numbers, on
from hyper_parallel_tests.harness import World, assert_close, assert_equal, contract


def mesh_of(world: World) -> Any:
    return world.mesh(tp=world.size)


def parameters_of(module: nn.Module) -> dict[str, Any]:
    return {name: one.detach() for name, one in module.named_parameters()}


@contract("SH-1-03")
@pytest.mark.parametrize("times", [2, 3])
def test_plan_applied_again(engine, world, times):
    """As many hooks as after the first time, and the same parameters."""
    model = engine.shard_module(block(world), mesh_of(world), block_plan(engine))
    once = hook_counts(model)
    for _ in range(times - 1):
        engine.shard_module(model, mesh_of(world), block_plan(engine))
    assert hook_counts(model) == once
    assert {name: kind_of(engine, one) for name, one in model.named_parameters()} == BLOCK_PLACEMENTS
    assert_equal(parameters_of(model), parameters_of(block(world)), what="parameter")


@contract("SH-1-03")
def test_plan_replaced(engine, world):
    """The later layouts hold, of inputs, outputs and parameters."""
    model = nn.ModuleDict({"probe": Defaults(), "layer": nn.Linear(8, 8)})
    for kind in ("S1", "R"):
        plan = engine.ShardingPlan(
            plan={"layer.weight": layout(engine, "S0" if kind == "S1" else "S1")},
            input_plan={"probe.input": {"left": layout(engine, kind)}},
            output_plan={"probe.output": layout(engine, kind)},
        )
        engine.shard_module(model, mesh_of(world), plan)
    found = model["probe"](on(engine, mesh_of(world), numbers(8, 8), "S0"))
    assert hook_counts(model)["probe"] == (1, 1)
    assert (model["probe"].kinds(engine)["left"], kind_of(engine, found)) == ("R", "R")
    assert kind_of(engine, model["layer"].weight) == "S1"


@contract("SH-1-03")
def test_plan_removed(engine, world, ledger):
    """No hook stays, parameters are plain with their values, and plain inputs give the unsharded output."""
    model = block(world)
    before = hook_counts(model)
    engine.shard_module(model, mesh_of(world), block_plan(engine))
    assert hook_counts(model) != before
    assert engine.remove_sharding_plan(model) is model
    assert hook_counts(model) == before
    assert not any(hasattr(one, "placements") for one in model.parameters())
    assert all(isinstance(one, nn.Parameter) and one.requires_grad for one in model.parameters())
    assert_equal(parameters_of(model), parameters_of(block(world)), what="parameter")
    inputs = two_inputs(world)[0].inputs
    assert_close(model(*inputs).detach(), whole_output(world, inputs), ledger["tp_fp32"], what="output")


@contract("SH-1-03")
def test_other_hooks_outlive_a_plan(engine, world):
    """Hooks of the module's user stay where they were and run."""
    ran: list[str] = []
    model = block(world)
    model.register_forward_pre_hook(lambda module, args: ran.append("before"))
    engine.shard_module(model, mesh_of(world), block_plan(engine))
    model.register_forward_hook(lambda module, args, output: ran.append("after"))
    engine.remove_sharding_plan(model)
    assert hook_counts(model)[""] == (1, 1)
    model(*two_inputs(world)[0].inputs)
    assert ran == ["before", "after"]


@contract("SH-1-03")
def test_plan_applied_after_removal(engine, world):
    """The module is as after the first time."""
    model = engine.shard_module(block(world), mesh_of(world), block_plan(engine))
    once = hook_counts(model)
    engine.shard_module(engine.remove_sharding_plan(model), mesh_of(world), block_plan(engine))
    assert hook_counts(model) == once
    assert {name: kind_of(engine, one) for name, one in model.named_parameters()} == BLOCK_PLACEMENTS


@contract("SH-1-03")
def test_plan_removed_from_a_copy(engine, world):
    """The copy has no hook left, and the original all of its own."""
    model = engine.shard_module(block(world), mesh_of(world), block_plan(engine))
    hooked = hook_counts(model)
    twin = engine.remove_sharding_plan(copy.deepcopy(model))
    assert set(hook_counts(twin).values()) == {(0, 0)}
    assert hook_counts(model) == hooked
    assert {name: kind_of(engine, one) for name, one in model.named_parameters()} == BLOCK_PLACEMENTS


@contract("SH-1-03")
def test_plan_removed_from_tied_parameters(engine, world):
    """One parameter under two names is one afterwards."""
    model = nn.ModuleDict({"first": nn.Linear(8, 8, bias=False), "second": nn.Linear(8, 8, bias=False)})
    model["second"].weight = model["first"].weight
    engine.shard_module(model, mesh_of(world), engine.ShardingPlan(plan={"first.weight": layout(engine, "S0")}))
    engine.remove_sharding_plan(model)
    assert not hasattr(model["first"].weight, "placements")
    assert model["second"].weight is model["first"].weight

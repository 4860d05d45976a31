"""A plan applied, applied again, replaced and taken off."""

from __future__ import annotations

import copy

import pytest
from torch import Tensor, nn

from hyper_parallel_tests.domains.shard.networks import BLOCK_PLACEMENTS, block, block_plan, two_inputs, whole_output
from hyper_parallel_tests.domains.shard.setting import Defaults, hook_counts, kind_of, layout, mesh_of, numbers, rows
from hyper_parallel_tests.harness import assert_close, assert_equal, contract, trace
from hyper_parallel_tests.models.seeding import build


def parameters_of(module: nn.Module) -> dict[str, Tensor]:
    return {name: one.detach() for name, one in module.named_parameters()}


@contract("SH-1-03")
def test_nothing_is_sent(engine, world):
    """Each rank divides its own parameters."""
    with trace.collectives() as sent:
        engine.shard_module(block(world), mesh_of(world), block_plan(engine))
    assert sent.ops() == []


@contract("SH-1-03")
@pytest.mark.parametrize("times", [2, 3])
def test_plan_applied_again(engine, world, times):
    """As many hooks as after the first time, and the same parameters, of which none is sent."""
    model = engine.shard_module(block(world), mesh_of(world), block_plan(engine))
    once = hook_counts(model)
    with trace.collectives() as sent:
        for _ in range(times - 1):
            engine.shard_module(model, mesh_of(world), block_plan(engine))
    assert sent.ops() == []
    assert hook_counts(model) == once
    assert {name: kind_of(engine, one) for name, one in model.named_parameters()} == BLOCK_PLACEMENTS
    assert_equal(parameters_of(model), parameters_of(block(world)), what="parameter")


@contract("SH-1-03")
def test_plan_replaced(engine, world):
    """The later layouts hold, of inputs, outputs and parameters."""
    model = nn.ModuleDict({"probe": Defaults(), "layer": build(lambda: nn.Linear(8, 8), 0)})
    before = parameters_of(model)
    for kind in ("S1", "R"):
        plan = engine.ShardingPlan(
            plan={"layer.weight": layout(engine, "S0" if kind == "S1" else "S1")},
            input_plan={"probe.input": {"left": layout(engine, kind)}},
            output_plan={"probe.output": layout(engine, kind)},
        )
        engine.shard_module(model, mesh_of(world), plan)
    found = model["probe"](rows(engine, world))
    assert hook_counts(model)["probe"] == (1, 1)
    assert (model["probe"].kinds(engine)["left"], kind_of(engine, found)) == ("R", "R")
    assert kind_of(engine, model["layer"].weight) == "S1"
    assert_equal(parameters_of(model), before, what="parameter")
    assert_equal(found, numbers(8, 8), what="output")


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
def test_plan_removed_from_frozen_parameters(engine, world):
    """What needs no gradient needs none afterwards, and what needs one does."""
    layer = nn.Linear(8, 8)
    layer.weight.requires_grad_(False)
    plan = engine.ShardingPlan(plan=dict.fromkeys(("weight", "bias"), layout(engine, "S0")))
    engine.remove_sharding_plan(engine.shard_module(layer, mesh_of(world), plan))
    assert (layer.weight.requires_grad, layer.bias.requires_grad) == (False, True)


@contract("SH-1-03")
def test_plan_removed_from_uneven_parameters(engine, world):
    """A dimension that the ranks do not divide evenly is whole again, and no gradient stays."""
    layer = build(lambda: nn.Linear(8, 2 * world.size + 1), 0)
    before = {name: one.clone() for name, one in parameters_of(layer).items()}
    plan = engine.ShardingPlan(plan=dict.fromkeys(before, layout(engine, "S0")))
    engine.shard_module(layer, mesh_of(world), plan)
    assert_equal(parameters_of(layer), before, what="divided parameter")
    for one in layer.parameters():
        one.grad = one.detach().clone()
    engine.remove_sharding_plan(layer)
    assert_equal(parameters_of(layer), before, what="parameter")
    assert [one.grad for one in layer.parameters()] == [None, None]


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

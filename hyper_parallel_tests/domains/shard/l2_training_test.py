"""A sharded module against the unsharded one."""

from __future__ import annotations

import pytest
from torch import nn

from hyper_parallel_tests.domains.shard.networks import (
    BLOCK_PLACEMENTS,
    SGD,
    block,
    block_plan,
    train_on_one_card,
    train_sharded,
    two_inputs,
    whole_gradients,
    whole_output,
)
from hyper_parallel_tests.domains.shard.setting import FORMS, kind_of, layout, mesh_of, on
from hyper_parallel_tests.harness import assert_bitwise_repeatable, assert_close, assert_parity, contract
from hyper_parallel_tests.harness.judging.parity import Track

# By name, since a track of one card is made in another process.
each_form = pytest.mark.parametrize("form", FORMS)


@contract("SH-2-01")
@each_form
def test_output(engine, world, ledger, form):
    """The output is that of the unsharded module, laid out as the plan says."""
    mesh = mesh_of(world)
    model = engine.shard_module(block(world), mesh, block_plan(engine))
    for batch in two_inputs(world):
        found = FORMS[form](model, *(on(engine, mesh, one, "S0") for one in batch.inputs))
        assert kind_of(engine, found) == "R"
        assert_close(
            found.full_tensor().detach(), whole_output(world, batch.inputs, form), ledger["tp_fp32"], what="output"
        )


@contract("SH-2-01")
def test_output_without_an_optional_input(engine, world, ledger):
    """A module that does without an argument does so when it is sharded."""
    mesh = mesh_of(world)
    model = engine.shard_module(block(world), mesh, block_plan(engine))
    left = two_inputs(world)[0].inputs[0]
    found = model(on(engine, mesh, left, "S0"))
    expected = whole_output(world, (left, None))
    assert_close(found.full_tensor().detach(), expected, ledger["tp_fp32"], what="output")


@contract("SH-2-01")
@each_form
def test_training(engine, world, ledger, form):
    """Loss, gradients and parameters over two steps are those of one card."""
    model = engine.shard_module(block(world), mesh_of(world), block_plan(engine))
    candidate = train_sharded(engine, world, model, form)
    assert {name: kind_of(engine, one) for name, one in model.named_parameters()} == BLOCK_PLACEMENTS
    assert_parity(candidate, train_on_one_card(world, form), ledger["tp_fp32"])


@contract("SH-2-01")
@each_form
def test_gradients_of_inputs(engine, world, ledger, form):
    """Inputs that need gradients get them through the hooks of the plan, as of whole inputs."""
    model = engine.shard_module(block(world), mesh_of(world), block_plan(engine))
    batch = two_inputs(world)[0]
    given = [nn.Parameter(on(engine, mesh_of(world), one, "S0")) for one in batch.inputs]
    engine.backward(FORMS[form](model, *given), batch.targets)
    found = [engine.full_gradient(one) for one in given]
    assert all(one is not None for one in found), "an input has no gradient"
    assert_close(found, whole_gradients(world, batch), ledger["tp_fp32"], what="gradient of input")


@contract("SH-2-01")
def test_repeated(engine, world):
    """Two runs in one process are equal bit for bit."""

    def run() -> Track:
        model = engine.shard_module(block(world), mesh_of(world), block_plan(engine))
        return train_sharded(engine, world, model, "mixed")

    assert_bitwise_repeatable(run)


@contract("SH-2-01")
def test_training_of_whole_parameters(engine, world, ledger):
    """Inputs divided by rows and replicated parameters: each has the sum of all ranks' gradients."""
    plan = engine.ShardingPlan(
        plan=dict.fromkeys(BLOCK_PLACEMENTS, layout(engine, "R")),
        input_plan={"input": {"left": layout(engine, "S0"), "right": layout(engine, "S0")}},
        output_plan={"output": layout(engine, "R")},
    )
    model = engine.shard_module(block(world), mesh_of(world), plan)
    # Gradients may be terms, which an optimizer that goes over the parts alone would not sum.
    candidate = train_sharded(engine, world, model, "mixed", optimizer=SGD)
    assert_parity(candidate, train_on_one_card(world, "mixed"), ledger["tp_fp32"])

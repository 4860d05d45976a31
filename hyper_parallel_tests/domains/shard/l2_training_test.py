"""A sharded module against the unsharded one."""

from __future__ import annotations

import pytest

from hyper_parallel_tests.domains.shard.networks import (
    BLOCK_PLACEMENTS,
    FORMS,
    SGD,
    block,
    block_plan,
    train_on_one_card,
    train_sharded,
    two_inputs,
    whole_output,
)
from hyper_parallel_tests.domains.shard.setting import kind_of, layout, on
from hyper_parallel_tests.harness import assert_close, assert_parity, contract

each_form = pytest.mark.parametrize("form", FORMS)


@contract("SH-2-01")
@each_form
def test_output(engine, world, ledger, form):
    """The output is that of the unsharded module, laid out as the plan says."""
    mesh = world.mesh(tp=world.size)
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
    mesh = world.mesh(tp=world.size)
    model = engine.shard_module(block(world), mesh, block_plan(engine))
    left = two_inputs(world)[0].inputs[0]
    found = model(on(engine, mesh, left, "S0"))
    expected = whole_output(world, (left, None))
    assert_close(found.full_tensor().detach(), expected, ledger["tp_fp32"], what="output")


@contract("SH-2-01")
@each_form
def test_training(engine, world, ledger, form):
    """Loss, gradients and parameters over two steps are those of one card."""
    model = engine.shard_module(block(world), world.mesh(tp=world.size), block_plan(engine))
    candidate = train_sharded(engine, world, model, form)
    assert {name: kind_of(engine, one) for name, one in model.named_parameters()} == BLOCK_PLACEMENTS
    assert_parity(candidate, train_on_one_card(world, form), ledger["tp_fp32"])


@contract("SH-2-01")
def test_training_of_whole_parameters(engine, world, ledger):
    """Inputs divided by rows and replicated parameters: each has the sum of all ranks' gradients."""
    plan = engine.ShardingPlan(
        plan=dict.fromkeys(BLOCK_PLACEMENTS, layout(engine, "R")),
        input_plan={"input": {"left": layout(engine, "S0"), "right": layout(engine, "S0")}},
        output_plan={"output": layout(engine, "R")},
    )
    model = engine.shard_module(block(world), world.mesh(tp=world.size), plan)
    # Gradients may be terms, which an optimizer that goes over the parts alone would not sum.
    candidate = train_sharded(engine, world, model, "mixed", optimizer=SGD)
    assert_parity(candidate, train_on_one_card(world, "mixed"), ledger["tp_fp32"])

"""What the end of backward does: once for each backward, whatever came before it."""

from __future__ import annotations

import pytest
import torch

from hyper_parallel_tests.domains.fully_shard.setting import (
    batch,
    either_fusion,
    full_now,
    gradients,
    loss,
    mine,
    network,
    parts,
    pending_gradients,
    sharded_network,
    single_card_gradients,
)
from hyper_parallel_tests.harness import assert_close, contract, in_clean_process, trace

LAYERS = 3


def messages(comm_fusion: bool) -> int:
    """How often a pass gathers or reduces: once for each layer, or for each weight and bias."""
    return LAYERS if comm_fusion else 2 * LAYERS


def backward(value: torch.Tensor, **options) -> int:
    """Runs backward and tells how many reductions it started."""
    with trace.collectives() as sent:
        value.backward(**options)
    return len(sent.of("reduce_scatter"))


def assert_step_is_over(engine, model) -> None:
    """Every gradient is reduced and every parameter is a shard again."""
    assert sorted(gradients(engine, model)) == sorted(name for name, _ in model.named_parameters())
    assert pending_gradients(engine, model) == {}
    assert full_now(engine, model) == set()


def assert_gradients(engine, world, ledger, model, *batches) -> None:
    """Gradients are those of a single card, accumulated over these batches."""
    expected = parts(world, single_card_gradients(world, *batches))
    assert_close(gradients(engine, model), expected, ledger["fsdp_1d_fp32"], what="gradients")


@contract("FS-1-03")
@pytest.mark.parametrize("grad_inputs", [False, True], ids=["plain_inputs", "inputs_with_gradient"])
@either_fusion
def test_end_of_backward_comes_once(engine, world, ledger, grad_inputs, comm_fusion):
    """Each layer is reduced once a backward, the first one too, whether or not its inputs need a gradient."""
    model, rows = sharded_network(engine, world, comm_fusion=comm_fusion), mine(world, batch(world))
    rows.inputs.requires_grad_(grad_inputs)
    for _ in range(2):
        assert backward(loss(model, rows)) == messages(comm_fusion)
        assert_step_is_over(engine, model)
    assert_gradients(engine, world, ledger, model, batch(world), batch(world))
    if grad_inputs:
        expected = 2 * in_clean_process(gradient_of_inputs, network(world), mine(world, batch(world)))
        assert_close(rows.inputs.grad, expected, ledger["fsdp_1d_fp32"], what="gradient of the inputs")


def gradient_of_inputs(model, rows) -> torch.Tensor:
    loss(model, rows._replace(inputs=rows.inputs.requires_grad_())).backward()
    return rows.inputs.grad


@contract("FS-1-03")
@either_fusion
def test_end_of_backward_comes_with_each_of_two_backwards_of_a_graph(engine, world, ledger, comm_fusion):
    """backward twice through one forward gathers and reduces twice, and the gradients add up."""
    model, rows = sharded_network(engine, world, comm_fusion=comm_fusion), batch(world)
    value = loss(model, mine(world, rows))
    assert backward(value, retain_graph=True) == messages(comm_fusion)
    assert_step_is_over(engine, model)
    assert backward(value) == messages(comm_fusion)
    assert_step_is_over(engine, model)
    assert_gradients(engine, world, ledger, model, rows, rows)


@contract("FS-1-03")
@pytest.mark.parametrize("more_to_come", [False, True], ids=["default", "first_is_not_last"])
@either_fusion
def test_end_of_backward_comes_with_each_of_two_forwards(engine, world, ledger, more_to_come, comm_fusion):
    """Two forwards, then a backward of each: both end by themselves.

    That the first is said not to be the last may save waiting, which nothing here can see; it must not cost a
    reduction or a value.
    """
    model, first, second = sharded_network(engine, world, comm_fusion=comm_fusion), batch(world, 0), batch(world, 1)
    values = [loss(model, mine(world, rows)) for rows in (first, second)]
    model.set_is_last_backward(not more_to_come)
    assert backward(values[0]) == messages(comm_fusion)
    model.set_is_last_backward(True)
    assert backward(values[1]) == messages(comm_fusion)
    assert_step_is_over(engine, model)
    assert_gradients(engine, world, ledger, model, first, second)


@contract("FS-1-03")
def test_end_of_backward_is_told_by_a_flag_only(engine, world):
    """Anything but a bool is refused by set_is_last_backward, instead of being kept as a truth value."""
    with pytest.raises(ValueError, match="is_last_backward"):
        sharded_network(engine, world).set_is_last_backward("last")


@contract("FS-1-03")
@either_fusion
def test_two_forwards_before_one_backward(engine, world, ledger, comm_fusion):
    """One backward through two forwards ends once for both: gradients are the sum, in this step and the next."""
    model, first, second = sharded_network(engine, world, comm_fusion=comm_fusion), batch(world, 0), batch(world, 1)
    for _ in range(2):
        model.zero_grad()
        values = [loss(model, mine(world, rows)) for rows in (first, second)]
        sum(values).backward()
        assert_step_is_over(engine, model)
        assert_gradients(engine, world, ledger, model, first, second)


@contract("FS-1-03")
@pytest.mark.parametrize("when", ["before_forward", "before_backward", "after_backward"])
@either_fusion
def test_forward_under_no_grad_ends_no_backward(engine, world, ledger, when, comm_fusion):
    """A forward under no_grad reduces nothing, and a backward around it ends once and is right."""
    model, rows = sharded_network(engine, world, comm_fusion=comm_fusion), batch(world)

    def evaluate() -> None:
        with torch.no_grad(), trace.collectives() as sent:
            model(mine(world, batch(world, seed=5)).inputs)
        assert sent.ops() == ["all_gather"] * messages(comm_fusion)
        assert full_now(engine, model) == set()

    if when == "before_forward":
        evaluate()
    value = loss(model, mine(world, rows))
    if when == "before_backward":
        evaluate()
    assert backward(value) == messages(comm_fusion)
    if when == "after_backward":
        evaluate()
    assert_step_is_over(engine, model)
    assert_gradients(engine, world, ledger, model, rows)

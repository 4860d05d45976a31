"""Gradients after backward: summed or averaged, and dropped by zero_grad."""

from __future__ import annotations

from functools import partial

import pytest
import torch

from hyper_parallel_tests.domains.fully_shard.setting import (
    batch,
    either_fusion,
    gradients,
    loss,
    mine,
    network,
    parts,
    pending_gradients,
    sharded_network,
    shards,
    single_card_gradients,
    single_card_parameters,
)
from hyper_parallel_tests.harness import assert_close, contract, in_clean_process

sgd = partial(torch.optim.SGD, lr=0.01, momentum=0.9)


@contract("FSDP-L1-03")
@either_fusion
@pytest.mark.parametrize("op", ["sum", "avg"])
def test_set_reduce_op_type(engine, world, ledger, op, comm_fusion):
    """Op "sum" gives the reference gradient times the world size, "avg" the reference gradient."""
    model = sharded_network(engine, world, comm_fusion=comm_fusion)
    model.set_reduce_op_type(op)
    loss(model, mine(world, batch(world))).backward()
    factor = world.size if op == "sum" else 1
    expected = {name: factor * grad for name, grad in single_card_gradients(world, batch(world)).items()}
    assert_close(gradients(engine, model), parts(world, expected), ledger["fsdp_1d_fp32"], what="gradients")


@contract("FSDP-L1-03")
def test_set_reduce_op_type_in_mid_training(engine, world, ledger):
    """A switch to sum and back scales that step's gradients alone: momenta and parameters stay sound."""
    model, batches = sharded_network(engine, world), [batch(world, seed=step) for step in range(3)]
    optimizer = sgd(model.parameters())
    for op, rows in zip(["avg", "sum", "avg"], batches, strict=True):
        model.set_reduce_op_type(op)
        loss(model, mine(world, rows)).backward()
        optimizer.step()
        optimizer.zero_grad()
    expected, parameters = in_clean_process(scaled_steps, network(world), batches, [1, world.size, 1])
    assert_close(momenta(optimizer, model), expected, ledger["fsdp_1d_fp32"], what="momentum")
    assert_close(dict(model.named_parameters()), parameters, ledger["fsdp_1d_fp32"], what="parameter")


def scaled_steps(model, batches, factors) -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]]:
    """Momenta and parameters after steps on gradients times a factor each."""
    optimizer = sgd(model.parameters())
    for rows, factor in zip(batches, factors, strict=True):
        loss(model, rows).backward()
        for parameter in model.parameters():
            parameter.grad *= factor
        optimizer.step()
        optimizer.zero_grad()
    return momenta(optimizer, model), dict(model.named_parameters())


def momenta(optimizer, model) -> dict[str, torch.Tensor]:
    return {name: optimizer.state[one]["momentum_buffer"] for name, one in model.named_parameters()}


@contract("FSDP-L1-03")
def test_set_reduce_op_type_reaches_one_module(engine, world, ledger):
    """With recurse=False the op is the module's own: the root's leaves the layers alone."""
    model = sharded_network(engine, world)
    model.set_reduce_op_type("sum", recurse=False)
    model.layers[0].set_reduce_op_type("sum", recurse=False)
    loss(model, mine(world, batch(world))).backward()
    expected = single_card_gradients(world, batch(world))
    for name in ("layers.0.weight", "layers.0.bias"):
        expected[name] *= world.size
    assert_close(gradients(engine, model), parts(world, expected), ledger["fsdp_1d_fp32"], what="gradients")


@contract("FSDP-L1-03")
def test_set_reduce_op_type_knows_sum_and_avg_only(engine, world):
    """Another op is refused by its name."""
    with pytest.raises(ValueError, match="max"):
        sharded_network(engine, world).set_reduce_op_type("max")


def reduced(model, batches) -> None:
    """Accumulates with every step reduced."""
    for rows in batches:
        loss(model, rows).backward()


def pending(model, batches) -> None:
    """Accumulates with no step reduced."""
    model.set_requires_gradient_sync(False)
    reduced(model, batches)
    model.set_requires_gradient_sync(True)


def both(model, batches) -> None:
    """Accumulates with the first step reduced and the others not."""
    reduced(model, batches[:1])
    pending(model, batches[1:])


def kept_full(model, batches) -> None:
    """Accumulates with parameters that stay full between the steps and after them."""
    model.set_reshard_after_backward(False)
    reduced(model, batches)
    model.set_reshard_after_backward(True)


@contract("FSDP-L1-04")
@pytest.mark.parametrize("accumulate", [reduced, pending, both, kept_full], ids=lambda how: how.__name__)
def test_zero_grad(engine, world, ledger, accumulate):
    """After three accumulated steps zero_grad leaves no gradient and the same data; the next one is fresh."""
    model = sharded_network(engine, world)
    accumulate(model, [mine(world, batch(world, seed=step)) for step in range(3)])
    assert gradients(engine, model) or pending_gradients(engine, model)

    model.zero_grad()
    assert all(parameter.grad is None for parameter in model.parameters())
    assert gradients(engine, model) == {}
    assert pending_gradients(engine, model) == {}
    snapshot = parts(world, single_card_parameters(world))
    assert_close(shards(engine, model), snapshot, ledger["exact"], what="parameters after zero_grad")

    loss(model, mine(world, batch(world, seed=9))).backward()
    fresh = parts(world, single_card_gradients(world, batch(world, seed=9)))
    assert_close(gradients(engine, model), fresh, ledger["fsdp_1d_fp32"], what="gradients after zero_grad")


@contract("FSDP-L1-04")
@pytest.mark.parametrize("accumulate", [reduced, pending, both, kept_full], ids=lambda how: how.__name__)
def test_zero_grad_to_zeros(engine, world, ledger, accumulate):
    """set_to_none=False leaves zeros where a reduced gradient was and nothing pending; the next one is fresh."""
    model = sharded_network(engine, world)
    accumulate(model, [mine(world, batch(world, seed=step)) for step in range(3)])
    zeros = {name: torch.zeros_like(gradient) for name, gradient in gradients(engine, model).items()}
    assert zeros or pending_gradients(engine, model)

    model.zero_grad(set_to_none=False)
    why = "zeros were asked for"
    assert_close(gradients(engine, model), zeros, ledger["exact"], what="gradients after zero_grad", zero_because=why)
    assert pending_gradients(engine, model) == {}

    loss(model, mine(world, batch(world, seed=9))).backward()
    fresh = parts(world, single_card_gradients(world, batch(world, seed=9)))
    assert_close(gradients(engine, model), fresh, ledger["fsdp_1d_fp32"], what="gradients of the next backward")


@contract("FSDP-L1-04")
@pytest.mark.parametrize("accumulate", [reduced, pending], ids=lambda how: how.__name__)
def test_zero_grad_ends_an_accumulation(engine, world, ledger, accumulate):
    """Without zero_grad the steps add up, reduced or not: what it drops had been there."""
    model = sharded_network(engine, world)
    batches = [batch(world, seed=step) for step in range(4)]
    accumulate(model, [mine(world, rows) for rows in batches[:3]])
    reduced(model, [mine(world, batches[3])])
    summed = parts(world, single_card_gradients(world, *batches))
    assert_close(gradients(engine, model), summed, ledger["fsdp_1d_fp32"], what="accumulated gradients")

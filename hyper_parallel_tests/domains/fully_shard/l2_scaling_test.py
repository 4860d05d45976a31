"""Training with a factor on the reduced gradients and with either reduce op, against a single card's."""

from __future__ import annotations

from functools import partial

import pytest
import torch

from hyper_parallel_tests.domains.fully_shard.setting import (
    LAYOUTS,
    WIDTHS,
    batch,
    each_layout,
    either_fusion,
    loss,
    mine,
    network,
    wrap,
)
from hyper_parallel_tests.harness import (
    assert_bitwise_repeatable,
    assert_parity,
    contract,
    mean_over_ranks,
    train,
    train_baseline,
)

WIDTH = WIDTHS["odd"]
MICRO_STEPS = 2
# Not Adam: its updates do not depend on the gradients' scale.
sgd = partial(torch.optim.SGD, lr=0.01, momentum=0.9)
FACTORS = {"fraction": 0.5, "whole_number": 3, "tensor": torch.tensor([0.25])}
OPS = ("avg", "sum")

# What every engine has, and odd shards beside parameters that are whole on every rank, fused or not.
each_sharding = pytest.mark.parametrize(
    ("width", "comm_fusion", "whole_biases"),
    [(WIDTHS["even"], False, False), (WIDTH, False, True), (WIDTH, True, True)],
    ids=["even-single", "odd-single-whole_biases", "odd-fused-whole_biases"],
)
each_op = pytest.mark.parametrize("op", OPS)


def sharded(engine, world, layout, comm_fusion, width=WIDTH, whole_biases=True):
    """Biases are kept whole on every rank if asked for, so that they are reduced in another way than the weights."""
    model = network(world, width)
    whole_ones = {parameter for parameter in model.parameters() if whole_biases and parameter.ndim == 1}
    return wrap(engine, model, model.layers, layout.mesh(world), comm_fusion=comm_fusion, replicate_params=whole_ones)


def batches(world, width):
    return [batch(world, seed=step, width=width) for step in range(3)]


def unreduced(model, last):
    """Nothing is reduced before the last backward."""
    model.set_requires_gradient_sync(last)


def reduced_inside_replicas(model, last):
    """Shards are reduced at each backward, replicas at the last one."""
    model.set_requires_all_reduce(last)


def micro_steps(model, rows, hold_back):
    """Two backwards, with something held back until the second; their loss is that of all rows."""
    total = 0.0
    for number in range(MICRO_STEPS):
        hold_back(model, number == MICRO_STEPS - 1)
        share = loss(model, rows.part(number, MICRO_STEPS)) / MICRO_STEPS
        share.backward()
        total = total + share.detach()
    return total


def run(world, model, loss=loss, width=WIDTH, **options):
    rows = [mine(world, one) for one in batches(world, width)]
    return train(model, rows, loss, optimizer=sgd, average=mean_over_ranks, **options)


def scale(model, factor):
    for parameter in model.parameters():
        parameter.grad.mul_(factor)


def run_on_one_card(world, factor, width=WIDTH):
    """Every gradient of the whole batch times a factor."""
    scaled = partial(scale, factor=factor)
    return train_baseline(network(world, width), batches(world, width), loss, optimizer=sgd, before_update=scaled)


def factor_of(world, op):
    """What the op makes of an average: its sum over the ranks."""
    return world.size if op == "sum" else 1


@contract("FS-2-06")
@each_op
@each_layout
@each_sharding
def test_reduce_op_trains_as_a_single_card_times_its_factor(
    engine, world, ledger, op, layout, width, comm_fusion, whole_biases
):
    """Op "avg" trains on the batch's gradients, "sum" on those times the number of ranks."""
    model = sharded(engine, world, layout, comm_fusion, width, whole_biases)
    model.set_reduce_op_type(op)
    baseline = run_on_one_card(world, factor_of(world, op), width)
    assert_parity(run(world, model, width=width), baseline, ledger[layout.row])


@contract("FS-2-06")
@pytest.mark.parametrize("factor", FACTORS.values(), ids=FACTORS)
@each_layout
@either_fusion
def test_gradient_scaling_factor_trains_as_a_single_card_times_it(engine, world, ledger, factor, layout, comm_fusion):
    """A number or a tensor of one element multiplies every reduced gradient once, sharded or replicated."""
    model = sharded(engine, world, layout, comm_fusion)
    model.set_gradient_scaling_factor(factor)
    assert_parity(run(world, model), run_on_one_card(world, float(factor)), ledger[layout.row])


@contract("FS-2-06")
@each_op
@each_layout
def test_gradient_scaling_factor_comes_on_top_of_the_reduce_op(engine, world, ledger, op, layout):
    """Op and factor multiply, whichever was set first."""
    factor = FACTORS["fraction"]
    expected = run_on_one_card(world, factor * factor_of(world, op))
    for op_first in (True, False):
        model = sharded(engine, world, layout, comm_fusion=True)
        if op_first:
            model.set_reduce_op_type(op)
        model.set_gradient_scaling_factor(factor)
        if not op_first:
            model.set_reduce_op_type(op)
        assert_parity(run(world, model), expected, ledger[layout.row])


@contract("FS-2-06")
@pytest.mark.parametrize("hold_back", [unreduced, reduced_inside_replicas])
@each_layout
@either_fusion
def test_gradient_scaling_factor_counts_once_for_accumulated_gradients(
    engine, world, ledger, layout, hold_back, comm_fusion
):
    """What piled up is scaled once: not at each micro-step, and not by both reductions of a hybrid mesh."""
    factor = FACTORS["whole_number"]
    model = sharded(engine, world, layout, comm_fusion)
    model.set_gradient_scaling_factor(factor)
    candidate = run(world, model, partial(micro_steps, hold_back=hold_back), backward=None)
    assert_parity(candidate, run_on_one_card(world, factor), ledger[layout.row])


@contract("FS-2-06")
@either_fusion
def test_gradient_scaling_factor_of_none_ends_the_scaling(engine, world, ledger, comm_fusion):
    """Set back to None, training is as if there had been no factor."""
    model = sharded(engine, world, LAYOUTS["whole"], comm_fusion)
    model.set_gradient_scaling_factor(FACTORS["whole_number"])
    model.set_gradient_scaling_factor(None)
    assert_parity(run(world, model), run_on_one_card(world, 1), ledger["fsdp_1d_fp32"])


@contract("FS-2-06")
@each_layout
def test_scaled_training_repeats_bit_by_bit(engine, world, layout):
    """The same factor and op again in the same process give the same bits."""

    def again():
        model = sharded(engine, world, layout, comm_fusion=True)
        model.set_reduce_op_type("sum")
        model.set_gradient_scaling_factor(FACTORS["fraction"])
        return run(world, model).steps

    assert_bitwise_repeatable(again)

"""Loss scaling in fp16: overflow on one rank is overflow on all."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from hyper_parallel_tests.domains.mixed_precision.reference import mean_of_parts
from hyper_parallel_tests.domains.mixed_precision.setting import (
    WIDTHS,
    batch,
    gradients,
    loss_of,
    mine,
    network,
    wrapped,
)
from hyper_parallel_tests.harness import World, assert_close, contract, in_clean_process, train_baseline
from hyper_parallel_tests.harness.judging.comparison import full
from hyper_parallel_tests.models.seeding import Batch

FP16, FP32 = torch.float16, torch.float32
WIDTH = WIDTHS["odd"]
SCALE = 2.0**10
GROWTH_INTERVAL = 2
STEPS = 6
OVERFLOWS = {0, 3}
# After each step: backed off, one step, grown after the second, and again.
SCALES = [SCALE / 2, SCALE / 2, SCALE, SCALE / 2, SCALE / 2, SCALE]
# So far away that the gradient of this output alone overflows, at these scales and in fp16.
FAR = 1e4
OPTIMIZERS = {
    "sgd_momentum": partial(torch.optim.SGD, lr=0.1, momentum=0.9),
    "adamw": partial(torch.optim.AdamW, lr=0.01),
}

each_optimizer = pytest.mark.parametrize("make_optimizer", OPTIMIZERS.values(), ids=OPTIMIZERS)
each_guilty = pytest.mark.parametrize("guilty", [0, -1], ids=["rows_of_first", "rows_of_last"])
each_output = pytest.mark.parametrize("output", [0, WIDTH - 1], ids=["shard_of_first", "shard_of_last"])


def overflowing(world: World, guilty: int, output: int) -> list[Batch]:
    """One batch a step; in some steps one row of the guilty rank has a far target, in one output."""
    rows = [batch(world, seed, WIDTH) for seed in range(STEPS)]
    for step in OVERFLOWS:
        rows[step].part(guilty % world.size, world.size).targets[0, output] = FAR
    return rows


def one_layer(engine, world: World) -> nn.Module:
    """A single layer, in which an output's overflow reaches one row of the weight and no more."""
    return wrapped(engine, world, network(world, WIDTH, depth=1), param_dtype=FP16, reduce_dtype=FP32)


def scaler_of(engine, world: World, **options):
    options = {"init_scale": SCALE, "growth_interval": GROWTH_INTERVAL} | options
    return engine.ShardedGradScaler(world.device.type, **options)


def full_parameters(model: nn.Module) -> dict[str, Tensor]:
    return {name: full(one) for name, one in model.named_parameters()}


def train_with_scaler(engine, world, rows, make_optimizer) -> tuple[list[dict[str, Tensor]], list[float]]:
    """Parameters and scale after each step, on ranks."""
    model, params, scales = one_layer(engine, world), [], []
    optimizer, scaler = make_optimizer(model.parameters()), scaler_of(engine, world)
    for one in rows:
        model.zero_grad()
        scaler.scale(loss_of(model, mine(world, one))).backward()
        scaler.step(optimizer)
        scaler.update()
        params.append(full_parameters(model))
        scales.append(scaler.get_scale())
    return params, scales


def train_on_one_card(world, rows, make_optimizer) -> list[dict[str, Tensor]]:
    """The same with scales that are known beforehand: a step with overflow does not happen."""
    return in_clean_process(scaled_steps, network(world, WIDTH, depth=1), rows, world.size, make_optimizer)


def scaled_steps(model: nn.Module, rows: list[Batch], ranks: int, make_optimizer: Any) -> list[dict[str, Tensor]]:
    params = []
    optimizer = make_optimizer(model.parameters())
    for step, one in enumerate(rows):
        if step not in OVERFLOWS:
            scale = SCALES[step - 1]
            optimizer.zero_grad()
            (mean_of_parts(model, one, ranks, FP16) * scale).backward()
            for parameter in model.parameters():
                parameter.grad /= scale
            optimizer.step()
        params.append(full_parameters(model))
    return params


def one_step(world) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Gradients and parameters of one card after a step without a scaler."""
    track = train_baseline(
        network(world, WIDTH, depth=1),
        [batch(world, width=WIDTH)] * 2,
        partial(mean_of_parts, parts=world.size, param_dtype=FP16),
        optimizer=partial(torch.optim.SGD, lr=0.1),
    )
    return track.steps[0].grads, track.steps[0].params


@contract("MP-2-01")
@each_guilty
@each_output
@each_optimizer
def test_overflow_skips_the_step_on_every_rank(engine, world, ledger, make_optimizer, output, guilty):
    """Whoever's rows overflow, and in whoever's shard: all skip that step, back off, and train on as one card does."""
    rows = overflowing(world, guilty, output)
    params, scales = train_with_scaler(engine, world, rows, make_optimizer)
    assert scales == SCALES
    assert_close(params, train_on_one_card(world, rows, make_optimizer), ledger["fsdp_fp32_reduce"], what="parameters")


@contract("MP-2-01")
@each_output
def test_skipped_step_is_no_step_to_the_optimizer(engine, world, output):
    """After an overflow in the first step no rank's optimizer has any state."""
    model = one_layer(engine, world)
    optimizer, scaler = OPTIMIZERS["adamw"](model.parameters()), scaler_of(engine, world)
    scaler.scale(loss_of(model, mine(world, overflowing(world, 0, output)[0]))).backward()
    scaler.step(optimizer)
    assert len(optimizer.state) == 0


@contract("MP-2-01")
@each_guilty
@pytest.mark.parametrize("value", [math.inf, math.nan], ids=["infinite", "nan"])
def test_gradient_outside_the_mesh_counts_too(engine, world, ledger, value, guilty):
    """A bad gradient of a plain parameter, which one rank has by itself, keeps all ranks from stepping with it."""
    plain = nn.Parameter(torch.ones(2, device=world.device))
    optimizer, scaler = torch.optim.SGD([plain], lr=0.1), scaler_of(engine, world)
    scaler.scale(plain.sum()).backward()
    if world.rank == guilty % world.size:
        plain.grad[0] = value
    scaler.step(optimizer)
    scaler.update()
    assert scaler.get_scale() == SCALE / 2
    assert_close(plain, torch.ones_like(plain), ledger["exact"], what="the plain parameter")


@contract("MP-2-01")
def test_gradients_are_unscaled_once(engine, world, ledger):
    """unscale_ yields the gradients that no scale has touched, step does not divide again, nor may the user."""
    model = one_layer(engine, world)
    optimizer, scaler = torch.optim.SGD(model.parameters(), lr=0.1), scaler_of(engine, world)
    expected_gradients, expected = one_step(world)
    scaler.scale(loss_of(model, mine(world, batch(world, width=WIDTH)))).backward()
    scaler.unscale_(optimizer)
    assert_close(gradients(model), expected_gradients, ledger["fsdp_fp32_reduce"], what="gradients")
    with pytest.raises(RuntimeError, match="unscale_"):
        scaler.unscale_(optimizer)
    scaler.step(optimizer)
    assert_close(full_parameters(model), expected, ledger["fsdp_fp32_reduce"], what="parameters")


@contract("MP-2-01")
def test_disabled_scaler_only_steps(engine, world, ledger):
    """Switched off, the scaler is not in the way: the loss stays, and the optimizer steps."""
    model = one_layer(engine, world)
    optimizer, scaler = torch.optim.SGD(model.parameters(), lr=0.1), scaler_of(engine, world, enabled=False)
    value = loss_of(model, mine(world, batch(world, width=WIDTH)))
    assert_close(scaler.scale(value), value, ledger["exact"], what="loss")
    value.backward()
    scaler.step(optimizer)
    scaler.update()
    _, expected = one_step(world)
    assert_close(full_parameters(model), expected, ledger["fsdp_fp32_reduce"], what="parameters")

"""Gradients of an fp16 computation that accumulate in fp32, on data with which fp16 computes exactly."""

from __future__ import annotations

from functools import partial

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from hyper_parallel_tests.domains.fully_shard.setting import gradients, parts, shards
from hyper_parallel_tests.harness import (
    assert_close,
    assert_differs,
    assert_parity,
    contract,
    mean_over_ranks,
    train,
    train_baseline,
)
from hyper_parallel_tests.models.seeding import Batch, generator

MICRO_STEPS, ROWS, WIDTH = 4, 4, 4
# Beside a gradient that is so many times larger, fp16 rounds the other micro-steps' gradients away.
LARGE = 2048.0
# A power of two, so that the update is exact too.
RATE = 2.0**-12

MicroStep = tuple[float, Batch]


def halves(name: str, *shape: int) -> Tensor:
    """Multiples of one half up to 3/2: their products and sums here have no more bits than fp16 holds."""
    return torch.randint(-3, 4, shape, generator=generator(0, name)) / 2


def layer(world, dtype: torch.dtype = torch.float32) -> nn.Linear:
    """One linear layer, not wrapped, with the same weights each time."""
    one = nn.Linear(WIDTH, WIDTH)
    with torch.no_grad():
        one.weight.copy_(halves("weight", WIDTH, WIDTH))
        one.bias.copy_(halves("bias", WIDTH))
    return one.to(world.device, dtype)


def micro_steps(world) -> list[list[MicroStep]]:
    """For each micro-step each rank's (factor of the loss, rows); rank 0's first factor is large."""
    return [
        [
            (
                LARGE if step == rank == 0 else 1.0,
                Batch(halves(f"inputs {step} {rank}", ROWS, WIDTH), halves(f"targets {step} {rank}", ROWS, WIDTH)).to(
                    world.device
                ),
            )
            for rank in range(world.size)
        ]
        for step in range(MICRO_STEPS)
    ]


def backward(model: nn.Module, factor: float, rows: Batch) -> Tensor:
    """Accumulates the gradients of `factor` x the squared error, and returns the error."""
    error = F.mse_loss(model(rows.inputs).float(), rows.targets)
    (factor * error).backward()
    return error.detach()


def on_ranks(model: nn.Module, steps: list[MicroStep], *, held_back: bool) -> Tensor:
    """This rank's micro-steps, each reduced or all reduced with the last; their mean error."""
    errors = []
    for number, (factor, rows) in enumerate(steps):
        model.set_requires_gradient_sync(not held_back or number == len(steps) - 1)
        errors.append(backward(model, factor, rows))
    return torch.stack(errors).mean()


def on_one_card(model: nn.Module, steps: list[list[MicroStep]]) -> Tensor:
    """All ranks' micro-steps one after the other, the ranks' gradients averaged; the mean error."""
    dtype = model.weight.dtype
    ranks = [(factor / len(step), rows) for step in steps for factor, rows in step]
    errors = [backward(model, factor, Batch(rows.inputs.to(dtype), rows.targets)) for factor, rows in ranks]
    return torch.stack(errors).mean()


def grads_on_one_card(world, steps: list[list[MicroStep]], dtype: torch.dtype) -> dict[str, Tensor]:
    """Gradients accumulated in `dtype`, shown in fp32."""
    grads = train_baseline(layer(world, dtype), [steps], on_one_card, backward=None).steps[0].grads
    return {name: one.float() for name, one in grads.items()}


def assert_fp16_could_not_hold(world, ledger, steps: list[list[MicroStep]]) -> None:
    """The data tell: each rank's gradient of each micro-step is exact in fp16, their sum is not."""
    for alone in ([[one]] for step in steps for one in step):
        ours, theirs = (grads_on_one_card(world, alone, dtype) for dtype in (torch.float16, torch.float32))
        assert_close(ours, theirs, ledger["exact"], what="gradients of one micro-step")
    ours, theirs = (grads_on_one_card(world, steps, dtype) for dtype in (torch.float16, torch.float32))
    assert_differs(ours, theirs, ledger["fsdp_fp16_main_grad"], what="accumulated gradients")


@contract("FSDP-L1-13")
@pytest.mark.parametrize("reduce_dtype", [torch.float32, None], ids=["reduce_fp32", "reduce_default"])
@pytest.mark.parametrize("held_back", [False, True], ids=["each_reduced", "held_back"])
def test_mp_apply_grad_on_fp32_main_grad(engine, world, ledger, held_back, reduce_dtype):
    """Micro-steps in fp16 add up to the fp32 card's gradient, which fp16 could not hold, and update as it does.

    reduce_fp32 is the plan's configuration. It shows the value, not the flag: shards in fp32 reduced in fp32 have
    such gradients without it too. The flag shows in reduce_default.
    """
    steps = micro_steps(world)
    assert_fp16_could_not_hold(world, ledger, steps)
    policy = engine.MixedPrecisionPolicy(torch.float16, reduce_dtype, apply_grad_on_fp32_main_grad=True)
    model = engine.fully_shard(layer(world), mesh=world.mesh(dp=world.size), mp_policy=policy)
    accumulate = partial(on_ranks, held_back=held_back)
    own = [step[world.rank] for step in steps]
    candidate = train(model, [own], accumulate, average=mean_over_ranks, backward=None)
    baseline = train_baseline(layer(world), [steps], on_one_card, backward=None)
    assert {grad.dtype for grad in gradients(engine, model).values()} == {torch.float32}
    assert_parity(candidate, baseline, ledger["fsdp_fp16_main_grad"])

    torch.optim.SGD(model.parameters(), lr=RATE).step()
    updated = {name: one - RATE * baseline.steps[0].grads[name] for name, one in baseline.start.items()}
    assert_close(shards(engine, model), parts(world, updated), ledger["fsdp_fp16_main_grad"], what="updated parameters")


@contract("FSDP-L1-13")
@pytest.mark.parametrize("stored", [torch.bfloat16, torch.float16], ids=["stored_bf16", "stored_fp16"])
def test_mp_apply_grad_on_fp32_main_grad_of_parameters_stored_lower(engine, world, ledger, stored):
    """Shards in bf16 or fp16 get the fp32 card's gradient in fp32, or are refused by the flag's name."""
    policy = engine.MixedPrecisionPolicy(torch.float16, apply_grad_on_fp32_main_grad=True)
    try:
        model = engine.fully_shard(layer(world, stored), mesh=world.mesh(dp=world.size), mp_policy=policy)
    except ValueError as error:
        assert "apply_grad_on_fp32_main_grad" in str(error)  # noqa: PT017 - either is right
        return
    steps = micro_steps(world)
    on_ranks(model, [step[world.rank] for step in steps], held_back=False)
    expected = parts(world, grads_on_one_card(world, steps, torch.float32))
    assert {grad.dtype for grad in gradients(engine, model).values()} == {torch.float32}
    assert_close(gradients(engine, model), expected, ledger["fsdp_fp16_main_grad"], what="gradients")

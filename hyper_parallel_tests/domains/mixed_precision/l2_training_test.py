"""Training in low precision against a single card that casts in the same places."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch

from hyper_parallel_tests.domains.mixed_precision.reference import mean_of_parts
from hyper_parallel_tests.domains.mixed_precision.setting import WIDTH, WIDTHS, batch, loss_of, mine, network, wrapped
from hyper_parallel_tests.harness import (
    World,
    assert_bitwise_repeatable,
    assert_parity,
    contract,
    mean_over_ranks,
    train,
    train_baseline,
)
from hyper_parallel_tests.harness.judging.parity import Track
from hyper_parallel_tests.models.seeding import Batch

BF16, FP16, FP32 = torch.bfloat16, torch.float16, torch.float32
STEPS = 5
OPTIMIZERS = {
    "sgd_momentum": partial(torch.optim.SGD, lr=0.1, momentum=0.9),
    "adamw": partial(torch.optim.AdamW, lr=0.01),
}

each_low_dtype = pytest.mark.parametrize("low", [BF16, FP16], ids=["bf16", "fp16"])
each_output_dtype = pytest.mark.parametrize("output_dtype", [None, FP32], ids=["low_outputs", "fp32_outputs"])
each_optimizer = pytest.mark.parametrize("optimizer", OPTIMIZERS.values(), ids=OPTIMIZERS)
either_reduction = pytest.mark.parametrize(
    "reduction",
    [{"reduce_dtype": FP32}, {"reduce_dtype": None, "apply_grad_on_fp32_main_grad": True}],
    ids=["fp32_reduce", "main_grad"],
)


def batches(world: World, width: int) -> list[Batch]:
    """One batch a step, the same on all ranks."""
    return [batch(world, seed, width) for seed in range(STEPS)]


def train_on_ranks(engine: Any, world: World, width: int, optimizer: Any, **policy: Any) -> Track:
    """Trains the network under the policy of these fields, on this rank's rows."""
    own_rows = [mine(world, one) for one in batches(world, width)]
    model = wrapped(engine, world, network(world, width), **policy)
    return train(model, own_rows, loss_of, optimizer=optimizer, average=mean_over_ranks)


def train_on_one_card(world: World, width: int, optimizer: Any, low: torch.dtype, output_dtype: Any = None) -> Track:
    """Trains it on all rows, with parameters cast for each forward, each rank's rows by themselves."""
    casting = partial(mean_of_parts, parts=world.size, param_dtype=low, output_dtype=output_dtype)
    return train_baseline(network(world, width), batches(world, width), casting, optimizer=optimizer)


@contract("MP-2-01")
@each_low_dtype
@each_output_dtype
@each_optimizer
@either_reduction
def test_training_equals_a_card_that_casts_alike(engine, world, ledger, low, output_dtype, optimizer, reduction):
    """Over five steps loss, norm, gradients and parameters are those of fp32 parameters cast for each forward."""
    policy = {"param_dtype": low, "output_dtype": output_dtype, **reduction}
    candidate = train_on_ranks(engine, world, WIDTH, optimizer, **policy)
    baseline = train_on_one_card(world, WIDTH, optimizer, low, output_dtype)
    assert_parity(candidate, baseline, ledger["fsdp_fp32_reduce"])


@contract("MP-2-01")
@each_low_dtype
@either_reduction
def test_training_of_uneven_shards_equals_a_card_that_casts_alike(engine, world, ledger, low, reduction):
    """A last shard that is shorter, and padded in one dtype or another, changes nothing."""
    width, optimizer = WIDTHS["odd"], OPTIMIZERS["adamw"]
    candidate = train_on_ranks(engine, world, width, optimizer, param_dtype=low, **reduction)
    assert_parity(candidate, train_on_one_card(world, width, optimizer, low), ledger["fsdp_fp32_reduce"])


@contract("MP-2-01")
@each_low_dtype
def test_low_precision_training_repeats_bit_by_bit(engine, world, low):
    """The same training again in the same process gives the same bits."""
    policy = {"param_dtype": low, "reduce_dtype": FP32}
    assert_bitwise_repeatable(lambda: train_on_ranks(engine, world, WIDTH, OPTIMIZERS["adamw"], **policy).steps)

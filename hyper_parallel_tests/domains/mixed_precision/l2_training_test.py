"""Training in low precision against a single card that casts in the same places."""

from __future__ import annotations

from functools import partial

import pytest
import torch

from hyper_parallel_tests.domains.mixed_precision.reference import mean_of_parts
from hyper_parallel_tests.domains.mixed_precision.setting import batch, loss_of, mine, network, wrapped
from hyper_parallel_tests.harness import assert_parity, contract, mean_over_ranks, train

BF16, FP16, FP32 = torch.bfloat16, torch.float16, torch.float32
OPTIMIZERS = {
    "sgd_momentum": partial(torch.optim.SGD, lr=0.1, momentum=0.9),
    "adamw": partial(torch.optim.AdamW, lr=0.01),
}

each_low_dtype = pytest.mark.parametrize("low", [BF16, FP16], ids=["bf16", "fp16"])
each_output_dtype = pytest.mark.parametrize("output_dtype", [None, FP32], ids=["low_outputs", "fp32_outputs"])
each_optimizer = pytest.mark.parametrize("optimizer", OPTIMIZERS.values(), ids=OPTIMIZERS)
either_reduction = pytest.mark.parametrize(
    "reduction", [{"reduce_dtype": FP32}, {"apply_grad_on_fp32_main_grad": True}], ids=["fp32_reduce", "main_grad"]
)


@contract("MP-2-01")
@each_low_dtype
@each_output_dtype
@each_optimizer
@either_reduction
def test_training_equals_a_card_that_casts_alike(engine, world, ledger, low, output_dtype, optimizer, reduction):
    """Over five steps loss, norm, gradients and parameters are those of fp32 parameters cast for each forward."""
    rows = [batch(world, seed) for seed in range(5)]
    model = wrapped(engine, world, network(world), param_dtype=low, output_dtype=output_dtype, **reduction)
    own_rows = [mine(world, one) for one in rows]
    candidate = train(model, own_rows, loss_of, optimizer=optimizer, average=mean_over_ranks)
    casting = partial(mean_of_parts, parts=world.size, param_dtype=low, output_dtype=output_dtype)
    baseline = train(network(world), rows, casting, optimizer=optimizer)
    assert_parity(candidate, baseline, ledger["fsdp_fp32_reduce"])

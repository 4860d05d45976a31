"""Dtypes of both reductions of a hybrid mesh: over the ranks of a replica, and over the replicas."""

from __future__ import annotations

from functools import partial

import pytest
import torch

from hyper_parallel_tests.domains.mixed_precision.reference import mean_of_parts
from hyper_parallel_tests.domains.mixed_precision.setting import batch, each_width, gradients, loss_of, mine, network
from hyper_parallel_tests.harness import assert_close, contract, trace, train_baseline

BF16, FP16, FP32 = torch.bfloat16, torch.float16, torch.float32

each_low_dtype = pytest.mark.parametrize("low", [BF16, FP16], ids=["bf16", "fp16"])


@contract("MP-1-01")
@each_low_dtype
@pytest.mark.parametrize("biases", ["divided", "whole"])
@each_width
def test_both_reductions_are_in_reduce_dtype(engine, world, ledger, biases, low, width):
    """Over shards, over replicas and of parameters that are whole on each rank gradients are summed in fp32."""
    model = network(world, width)
    whole = {layer.bias for layer in model.layers} if biases == "whole" else None
    policy = engine.MixedPrecisionPolicy(param_dtype=low, reduce_dtype=FP32)
    mesh = world.mesh(replicate=2, shard=world.size // 2)
    engine.fully_shard(model, mesh=mesh, mp_policy=policy, replicate_params=whole)
    rows = batch(world, width=width)
    with trace.collectives() as sent:
        loss_of(model, mine(world, rows)).backward()
    dtypes = {op: {one.dtype for one in sent.of(op)} for op in ("all_gather", "reduce_scatter", "all_reduce")}
    low_name = str(low).removeprefix("torch.")
    assert dtypes == {"all_gather": {low_name}, "reduce_scatter": {"float32"}, "all_reduce": {"float32"}}

    casting = partial(mean_of_parts, parts=world.size, param_dtype=low)
    expected = train_baseline(network(world, width), [rows], casting).steps[0].grads
    assert_close(gradients(model), expected, ledger["fsdp_fp32_reduce"], what="gradients")

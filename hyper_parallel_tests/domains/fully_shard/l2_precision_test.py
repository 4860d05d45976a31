"""The plan's mixed precision matrix against a single card that casts in the same places, and CPU offload."""

from __future__ import annotations

from functools import partial

import pytest
import torch
import torch.nn.functional as F

from hyper_parallel_tests.domains.fully_shard.setting import (
    batch,
    loss,
    mine,
    network,
    plain_or_demanding,
    sharded_network,
)
from hyper_parallel_tests.harness import (
    assert_bitwise_repeatable,
    assert_parity,
    contract,
    mean_over_ranks,
    train,
    train_baseline,
)

BF16, FP16, FP32 = torch.bfloat16, torch.float16, torch.float32
# Rows of the plan's matrix. An input that is not cast must come in the parameters' dtype.
POLICIES = {
    "fp32": {},
    "fp16_fp32": {"param_dtype": FP16, "reduce_dtype": FP32, "output_dtype": FP32},
    "bf16_fp32": {"param_dtype": BF16, "reduce_dtype": FP32, "output_dtype": FP32},
    "bf16_bf16": {"param_dtype": BF16, "reduce_dtype": BF16, "output_dtype": BF16},
    "fp16_fp32_no_input_cast": {"param_dtype": FP16, "reduce_dtype": FP32, "cast_forward_inputs": False},
    "fp16_fp32_main_grad": {"param_dtype": FP16, "reduce_dtype": FP32, "apply_grad_on_fp32_main_grad": True},
}
sgd = partial(torch.optim.SGD, lr=0.1, momentum=0.9)

each_policy = pytest.mark.parametrize("policy", POLICIES.values(), ids=POLICIES)


def batches(world, policy, width):
    found = [batch(world, seed=step, width=width) for step in range(3)]
    if policy.get("cast_forward_inputs", True):
        return found
    return [rows._replace(inputs=rows.inputs.to(policy["param_dtype"])) for rows in found]


def train_sharded(engine, world, policy, width, **options):
    mp_policy = engine.MixedPrecisionPolicy(**policy)
    model = sharded_network(engine, world, width, mp_policy=mp_policy, **options)
    rows = [mine(world, one) for one in batches(world, policy, width)]
    return train(model, rows, loss, optimizer=sgd, average=mean_over_ranks)


def offload(engine, world):
    """Pinned memory is memory for an accelerator: a host without one has none."""
    return engine.CPUOffloadPolicy(pin_memory=world.device.type != "cpu")


def casting_loss(model, rows, policy):
    """The network's loss, cast around each layer as the policy says of a wrapped module."""
    low = policy.get("param_dtype", FP32)
    hidden = rows.inputs
    for number, layer in enumerate(model.layers):
        inputs = (torch.tanh(hidden) if number else hidden).to(low)
        hidden = F.linear(inputs, layer.weight.to(low), layer.bias.to(low)).to(policy.get("output_dtype", low))
    return F.mse_loss(hidden, rows.targets)


def whole_loss(model, rows, policy, ranks):
    """Every rank's rows one after the other, and their gradients averaged in the dtype of the reduction."""
    reduce_dtype = policy.get("reduce_dtype", FP32)
    losses = [casting_loss(model, rows.part(rank, ranks), policy) for rank in range(ranks)]
    shares = [torch.autograd.grad(one, list(model.parameters())) for one in losses]
    for parameter, grads in zip(model.parameters(), zip(*shares, strict=True), strict=True):
        total = sum(grad.to(reduce_dtype) for grad in grads)
        parameter.grad = (total / ranks).to(parameter.dtype)
    return torch.stack([one.detach() for one in losses]).mean()


def train_on_one_card(world, policy, width):
    model, loss = network(world, width), partial(whole_loss, policy=policy, ranks=world.size)
    return train_baseline(model, batches(world, policy, width), loss, optimizer=sgd, backward=None)


@contract("FS-2-03")
@each_policy
@plain_or_demanding
def test_policy_trains_as_a_single_card_that_casts_alike(engine, world, ledger, policy, width, comm_fusion):
    """With the casts in the same places no low-precision rounding is left to tolerate: the fp32 row holds."""
    candidate = train_sharded(engine, world, policy, width, comm_fusion=comm_fusion)
    assert_parity(candidate, train_on_one_card(world, policy, width), ledger["fsdp_1d_fp32"])


@contract("FS-2-03")
@each_policy
@plain_or_demanding
def test_cpu_offload_changes_no_bit(engine, world, ledger, policy, width, comm_fusion):
    """Offloaded training is the same training, and the single card's."""
    offloaded = train_sharded(
        engine, world, policy, width, offload_policy=offload(engine, world), comm_fusion=comm_fusion
    )
    plain = train_sharded(engine, world, policy, width, comm_fusion=comm_fusion)
    assert_parity(offloaded, plain, ledger["exact"], own_because="offloading is to change no bit of it")
    assert_parity(offloaded, train_on_one_card(world, policy, width), ledger["fsdp_1d_fp32"])


@contract("FS-2-03")
@plain_or_demanding
def test_cpu_offload_keeps_shards_on_the_cpu(engine, world, width, comm_fusion):
    """Shards and their gradients are in the CPU's memory, parameters in forward on the card.

    Where the CPU is the card, the two are one memory, and this says nothing.
    """
    model = sharded_network(engine, world, width, offload_policy=offload(engine, world), comm_fusion=comm_fusion)
    seen = []
    for layer in model.layers:
        layer.register_forward_pre_hook(lambda module, _inputs: seen.extend(module.parameters()))
    loss(model, mine(world, batch(world, width=width))).backward()
    assert {one.device for one in seen} == {world.device}
    managed = engine.managed_parameters(model)
    assert len(seen) == len(managed)
    for one in managed:
        assert (one.shard.device.type, one.grad.device.type) == ("cpu", "cpu"), one.name


@contract("FS-2-03")
@plain_or_demanding
def test_policy_repeats_bit_by_bit(engine, world, width, comm_fusion):
    """The same training again in the same process gives the same bits."""
    assert_bitwise_repeatable(
        lambda: train_sharded(engine, world, POLICIES["bf16_bf16"], width, comm_fusion=comm_fusion).steps
    )

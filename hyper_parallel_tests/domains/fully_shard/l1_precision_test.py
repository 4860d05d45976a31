"""Mixed precision policies against a single card that casts in the same places."""

from __future__ import annotations

from functools import partial

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from hyper_parallel_tests.domains.fully_shard.reference import cast_forward
from hyper_parallel_tests.domains.fully_shard.setting import batch, gradients, mine, network, shards
from hyper_parallel_tests.harness import (
    assert_close,
    assert_parity,
    contract,
    in_clean_process,
    mean_over_ranks,
    trace,
    train,
    train_baseline,
)

BF16, FP16, FP32 = torch.bfloat16, torch.float16, torch.float32
SGD = partial(torch.optim.SGD, lr=0.05)


def wrapped(engine, world, model, **policy):
    """The whole model as one unit of that policy."""
    mesh, policy = world.mesh(dp=world.size), engine.MixedPrecisionPolicy(**policy)
    return engine.fully_shard(model, mesh=mesh, mp_policy=policy)


def dtypes_in_forward(model: nn.Module) -> list[torch.dtype]:
    """A list to which each layer's forward will add the dtypes of its weight, inputs and outputs."""
    seen: list[torch.dtype] = []
    for layer in model.layers:
        layer.register_forward_hook(
            lambda layer, inputs, output: seen.extend([layer.weight.dtype, inputs[0].dtype, output.dtype])
        )
    return seen


def mixed_loss(model: nn.Module, rows) -> Tensor:
    """Squared error in fp32, whatever the model's outputs are."""
    return F.mse_loss(model(rows.inputs).float(), rows.targets)


def casting_loss(model: nn.Module, rows, ranks: int, param_dtype: torch.dtype, output_dtype: torch.dtype) -> Tensor:
    """The mean loss over the ranks' rows on one card, each rank's computed apart: that is where it is rounded."""
    losses = []
    for part in (rows.part(rank, ranks) for rank in range(ranks)):
        output = cast_forward(model, part.inputs, param_dtype, output_dtype)
        losses.append(F.mse_loss(output.float(), part.targets))
    return torch.stack(losses).mean()


def dtypes(tensors: dict[str, Tensor]) -> set[torch.dtype]:
    return {tensor.dtype for tensor in tensors.values()}


@contract("FSDP-L1-10")
def test_mp_bf16_param_fp32_reduce(engine, world, ledger):
    """Parameters are bf16 in forward, gradients fp32 from the reduction on, and training is the casting card's."""
    model = network(world)
    seen = dtypes_in_forward(model)
    wrapped(engine, world, model, param_dtype=BF16, reduce_dtype=FP32, output_dtype=FP32)
    batches = [batch(world, seed=step) for step in range(2)]
    with trace.collectives() as sent:
        output = model(mine(world, batches[0]).inputs)
        output.sum().backward()
    assert set(seen) == {BF16}
    assert output.dtype == FP32
    assert {one.dtype for one in sent.of("all_gather")} == {"bfloat16"}
    assert {one.dtype for one in sent.of("reduce_scatter")} == {"float32"}
    assert dtypes(gradients(engine, model)) == {FP32}

    rows = [mine(world, one) for one in batches]
    candidate = train(model, rows, mixed_loss, optimizer=SGD, average=mean_over_ranks)
    casting = partial(casting_loss, ranks=world.size, param_dtype=BF16, output_dtype=FP32)
    baseline = train_baseline(network(world), batches, casting, optimizer=SGD)
    assert_parity(candidate, baseline, ledger["fsdp_1d_bf16"])


@contract("FSDP-L1-11")
@pytest.mark.parametrize("stored", [BF16, FP32], ids=["stored_bf16", "stored_fp32"])
def test_mp_bf16_all_bf16(engine, world, ledger, stored):
    """All is bf16: parameters in forward, outputs and reduced gradients; shards keep the dtype they had."""
    model = network(world).to(stored)
    seen = dtypes_in_forward(model)
    wrapped(engine, world, model, param_dtype=BF16, reduce_dtype=BF16, output_dtype=BF16)
    rows = batch(world)
    with trace.collectives() as sent:
        output = model(mine(world, rows).inputs)
        output.sum().backward()
    assert set(seen) == {BF16}
    assert output.dtype == BF16
    assert {one.dtype for one in sent} == {"bfloat16"}
    assert dtypes(shards(engine, model)) == {stored}
    assert dtypes(gradients(engine, model)) == {stored}

    candidate = train(model, [mine(world, rows)], mixed_loss, average=mean_over_ranks)
    casting = partial(casting_loss, ranks=world.size, param_dtype=BF16, output_dtype=BF16)
    baseline = train_baseline(network(world).to(stored), [rows], casting)
    assert_parity(candidate, baseline, ledger["fsdp_1d_bf16"])


class CastsInside(nn.Module):
    """The network behind a cast of its own, as models have it that need their inputs in full precision first."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, inputs: Tensor) -> Tensor:
        return self.inner(inputs.to(self.inner.layers[0].weight.dtype))


@contract("FSDP-L1-12")
@pytest.mark.parametrize("dtype", [FP32, FP16], ids=["fp32_inputs", "fp16_inputs"])
def test_mp_cast_forward_inputs_false(engine, world, ledger, dtype):
    """Inputs arrive in the dtype that they have, parameters are fp16, and loss and gradients are finite."""
    model, rows = CastsInside(network(world)), mine(world, batch(world))
    wrapped(engine, world, model, param_dtype=FP16, reduce_dtype=FP32, cast_forward_inputs=False)
    arrived, seen = [], dtypes_in_forward(model.inner)
    model.register_forward_hook(lambda _module, inputs, _output: arrived.append(inputs[0].dtype))
    output = model(rows.inputs.to(dtype))
    value = F.mse_loss(output.float(), rows.targets)
    value.backward()
    assert arrived == [dtype]
    assert set(seen) == {FP16}
    assert value.isfinite()
    assert dtypes(gradients(engine, model)) == {FP32}
    assert all(grad.isfinite().all() for grad in gradients(engine, model).values())
    expected = in_clean_process(cast_forward, network(world), rows.inputs, FP16, FP16)
    assert_close(output, expected, ledger["exact"], what="output")

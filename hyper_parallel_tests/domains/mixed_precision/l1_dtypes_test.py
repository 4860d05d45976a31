"""Dtypes on the way through wrapped modules and back."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from hyper_parallel_tests.domains.mixed_precision.setting import (
    WIDTH,
    batch,
    each_width,
    loss_of,
    mine,
    network,
    wrapped,
)
from hyper_parallel_tests.harness import assert_close, contract, trace

BF16, FP16, FP32 = torch.bfloat16, torch.float16, torch.float32

each_low_dtype = pytest.mark.parametrize("low", [BF16, FP16], ids=["bf16", "fp16"])


def dtypes_by_layer(model: nn.Module) -> dict[str, tuple[torch.dtype, ...]]:
    """A dict that each layer's forward will fill with the dtypes of its input, weight and output."""
    seen = {}
    for name, layer in model.layers.named_children():
        layer.register_forward_hook(
            lambda layer, inputs, output, name=name: seen.update(
                {name: (inputs[0].dtype, layer.weight.dtype, output.dtype)}
            )
        )
    return seen


def names(collectives) -> set[str]:
    return {one.dtype for one in collectives}


@contract("MP-1-01")
@each_low_dtype
@each_width
def test_dtypes_through_a_training_step(engine, world, low, width):
    """Forward is low, the reduction fp32, and the shard, its gradient and its optimizer state are fp32."""
    model = network(world, width)
    seen = dtypes_by_layer(model)
    wrapped(engine, world, model, param_dtype=low, reduce_dtype=FP32, output_dtype=FP32)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    rows = mine(world, batch(world, width=width))
    with trace.collectives() as sent:
        output = model(rows.inputs)
        output.sum().backward()
    optimizer.step()
    assert seen == {str(layer): (low, low, low) for layer in range(3)}
    assert output.dtype == FP32
    assert names(sent.of("all_gather")) == {str(low).removeprefix("torch.")}
    assert names(sent.of("reduce_scatter")) == {"float32"}
    for name, one in model.named_parameters():
        state = optimizer.state[one]
        kept = {one.dtype, one.grad.dtype, state["exp_avg"].dtype, state["exp_avg_sq"].dtype}
        assert kept == {FP32}, name


@contract("MP-1-01")
@each_low_dtype
@each_width
def test_stored_low_precision_stays_low(engine, world, low, width):
    """Parameters stored low keep low gradients and optimizer state, though they are computed and reduced in fp32."""
    model = network(world, width).to(low)
    seen = dtypes_by_layer(model)
    wrapped(engine, world, model, param_dtype=FP32, reduce_dtype=FP32)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    with trace.collectives() as sent:
        loss_of(model, mine(world, batch(world, width=width))).backward()
    optimizer.step()
    assert seen == {str(layer): (FP32, FP32, FP32) for layer in range(3)}
    assert names(sent.of("reduce_scatter")) == {"float32"}
    for name, one in model.named_parameters():
        assert {one.dtype, one.grad.dtype, optimizer.state[one]["momentum_buffer"].dtype} == {low}, name


@contract("MP-1-01")
def test_nested_modules_have_policies_of_their_own(engine, world):
    """Each wrapped layer goes by its own policy, an unwrapped one by that of the module around it."""
    model = network(world)
    seen = dtypes_by_layer(model)
    wrapped(engine, world, model.layers[0], param_dtype=FP16, reduce_dtype=FP32, output_dtype=FP32)
    wrapped(engine, world, model.layers[1])
    wrapped(engine, world, model, param_dtype=BF16, reduce_dtype=FP32)
    # What fp32 leaves of layer 1 is cast by nobody on its way to the unwrapped layer 2.
    model.layers[2].register_forward_pre_hook(lambda layer, inputs: inputs[0].to(layer.weight.dtype))
    arrived = []
    model.register_forward_pre_hook(lambda _, inputs: arrived.append(inputs[0].dtype))
    output = model(mine(world, batch(world)).inputs)
    with trace.collectives() as sent:
        output.sum().backward()
    assert arrived == [BF16]
    assert seen == {"0": (FP16, FP16, FP16), "1": (FP32, FP32, FP32), "2": (BF16, BF16, BF16)}
    assert output.dtype == BF16
    assert names(sent.of("reduce_scatter")) == {"float32"}
    assert {one.grad.dtype for one in model.parameters()} == {FP32}


@contract("MP-1-01")
def test_each_policy_reduces_in_its_own_dtype(engine, world):
    """Layers with a reduce_dtype, without one and without a policy reduce in that, in param_dtype and in fp32."""
    model = network(world)
    policies = ({"param_dtype": BF16, "reduce_dtype": FP32}, {"param_dtype": BF16, "output_dtype": FP32}, {})
    for layer, policy in zip(model.layers, policies, strict=True):
        wrapped(engine, world, layer, **policy)
    wrapped(engine, world, model)
    loss = loss_of(model, mine(world, batch(world)))
    with trace.collectives() as sent:
        loss.backward()
    reduced = [one.dtype for one in sent.of("reduce_scatter")]
    # Backward begins with the last layer; weight and bias are reduced one by one.
    assert reduced == ["float32"] * 2 + ["bfloat16"] * 2 + ["float32"] * 2


class Mixed(nn.Module):
    """A layer that also gets and gives what is not floating point, in a structure, by position and by keyword."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(WIDTH, WIDTH)
        self.seen: dict[str, Tensor] = {}

    def forward(self, inputs: Tensor, ids: Tensor, *, extra: dict[str, Tensor]) -> dict[str, object]:
        self.seen = {"inputs": inputs, "ids": ids, **extra}
        return {"output": self.layer(inputs), "kept": [ids, extra["mask"]], "label": "whole"}


@contract("MP-1-01")
@each_low_dtype
def test_integers_and_booleans_are_untouched(engine, world, ledger, low):
    """Integers too large for a low dtype, and booleans, arrive and leave as they are; floats beside them are cast."""
    module = wrapped(engine, world, Mixed().to(world.device), param_dtype=low, output_dtype=FP32)
    ids = torch.tensor([2**24 + 1, 70_001, -3], device=world.device)
    mask = torch.tensor([True, False, True], device=world.device)
    scale = torch.full((3,), 1 / 3, device=world.device)
    outputs = module(torch.ones(3, WIDTH, device=world.device), ids, extra={"mask": mask, "scale": scale})
    assert module.seen["inputs"].dtype == low
    assert_close(module.seen["scale"], scale.to(low), ledger["exact"], what="float by keyword")
    for where, kept in (("inside", [module.seen["ids"], module.seen["mask"]]), ("outside", outputs["kept"])):
        assert_close(kept, [ids, mask], ledger["exact"], what=f"integers and booleans {where}")
    assert outputs["output"].dtype == FP32
    assert outputs["label"] == "whole"

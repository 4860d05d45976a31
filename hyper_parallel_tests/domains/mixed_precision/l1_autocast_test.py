"""Autocast around and inside wrapped modules."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from functools import partial

import pytest
import torch
from torch import Tensor, nn

from hyper_parallel_tests.domains.mixed_precision.reference import forward_under_policy, loss
from hyper_parallel_tests.domains.mixed_precision.setting import batch, each_width, gradients, mine, network, wrapped
from hyper_parallel_tests.harness import assert_close, contract, in_clean_process, trace
from hyper_parallel_tests.models.mlp import Mlp

BF16, FP16, FP32 = torch.bfloat16, torch.float16, torch.float32

# What autocast makes of the policy's parameters.
PARAM_DTYPES = {"from_fp32": None, "from_the_same": BF16, "from_another": FP16}
SGD = partial(torch.optim.SGD, lr=0.1)

each_param_dtype = pytest.mark.parametrize("param_dtype", PARAM_DTYPES.values(), ids=PARAM_DTYPES)
either_place = pytest.mark.parametrize("inside", [False, True], ids=["around", "inside"])


def region(world, on: bool = True) -> AbstractContextManager:
    """Autocast to bf16, or nothing."""
    return torch.autocast(world.device.type, BF16) if on else nullcontext()


class Island(nn.Module):
    """The network, in whose forward a context of the case's choice is entered, and which notes its dtypes."""

    def __init__(self, inner: Mlp, context: AbstractContextManager) -> None:
        super().__init__()
        self.inner, self.context = inner, context
        self.seen: dict[str, torch.dtype] = {}

    def forward(self, inputs: Tensor) -> Tensor:
        with self.context:
            hidden = self.inner(inputs)
        self.seen = {"param": self.inner.layers[0].weight.dtype, "input": inputs.dtype, "output": hidden.dtype}
        return hidden


def in_region_of_each(world, model, rows, param_dtype, inside) -> tuple[list[Tensor], dict[str, Tensor]]:
    """Outputs for each rank's rows and the gradients of their mean loss, on a card that casts as the policy says."""
    model, outputs = Island(model, region(world, inside)), []
    for rank in range(world.size):
        part = rows.part(rank, world.size)
        # A region for each, as each rank has its own: in one they would share what autocast has cast.
        with region(world, not inside):
            outputs.append(forward_under_policy(model, part.inputs, param_dtype, FP32))
        (loss(outputs[-1], part) / world.size).backward()
    return [one.detach() for one in outputs], gradients(model)


@contract("MP-1-02")
@each_param_dtype
@either_place
@each_width
def test_autocast_and_policy_each_have_their_say(engine, world, ledger, param_dtype, inside, width):
    """Operations run in autocast's dtype, parameters and the reduction in the policy's, as on a card that casts so."""
    model = Island(network(world, width), region(world, inside))
    wrapped(engine, world, model, param_dtype=param_dtype, reduce_dtype=FP32, output_dtype=FP32)
    rows = batch(world, width=width)
    with trace.collectives() as sent:
        with region(world, not inside):
            output = model(mine(world, rows).inputs)
        loss(output, mine(world, rows)).backward()
    stored = param_dtype or FP32
    assert model.seen == {"param": stored, "input": stored, "output": BF16}
    assert {one.dtype for one in sent.of("all_gather")} == {str(stored).removeprefix("torch.")}
    assert {one.dtype for one in sent.of("reduce_scatter")} == {"float32"}

    outputs, expected = in_clean_process(in_region_of_each, world, network(world, width), rows, param_dtype, inside)
    assert_close(output, outputs[world.rank], ledger["exact"], what="output")
    assert_close(gradients(model), expected, ledger["fsdp_fp32_reduce"], what="gradients")


@contract("MP-1-02")
def test_autocast_can_be_left_inside(engine, world, ledger):
    """Where a wrapped module switches autocast off, its operations run in the policy's dtype again."""
    model = Island(network(world), torch.autocast(world.device.type, enabled=False))
    wrapped(engine, world, model, param_dtype=FP16, reduce_dtype=FP32)
    with region(world):
        output = model(mine(world, batch(world)).inputs)
    assert model.seen == {"param": FP16, "input": FP16, "output": FP16}
    inputs = mine(world, batch(world)).inputs
    expected = in_clean_process(forward_under_policy, network(world), inputs, FP16, None)
    assert_close(output, expected, ledger["exact"], what="output")


def at_once(losses: list[Tensor]) -> None:
    """One backward for all."""
    torch.stack(losses).sum().backward()


def one_by_one(losses: list[Tensor]) -> None:
    """A backward for each, in order."""
    for one in losses:
        one.backward()


def train_in_regions(world, model, ranks, backward) -> dict[str, Tensor]:
    """Parameters after two steps of two batches each, both in one region, on the rows of the given ranks."""
    optimizer = SGD(model.parameters())
    for step in range(2):
        for rank in ranks:
            parts = [batch(world, seed=2 * step + i).part(rank, world.size) for i in range(2)]
            with region(world):
                losses = [loss(model(rows.inputs), rows) / len(ranks) for rows in parts]
            backward(losses)
        optimizer.step()
        optimizer.zero_grad()
    return dict(model.named_parameters())


@contract("MP-1-02")
@pytest.mark.parametrize("backward", [at_once, one_by_one], ids=lambda how: how.__name__)
def test_weights_that_autocast_keeps_are_current(engine, world, ledger, backward):
    """Autocast's copies outlive the freed weights in a region, serve its second batch, and end before the update."""
    model = network(world)
    for layer in model.layers:
        wrapped(engine, world, layer)
    wrapped(engine, world, model)
    ours = train_in_regions(world, model, [world.rank], backward)
    theirs = in_clean_process(train_in_regions, world, network(world), range(world.size), backward)
    assert_close(ours, theirs, ledger["fsdp_fp32_reduce"], what="parameters")

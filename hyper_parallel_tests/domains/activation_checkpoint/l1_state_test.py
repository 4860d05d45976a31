"""The state that a region finds when it runs again, and the state that it leaves: random numbers, autocast, errors."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext, suppress
from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from hyper_parallel_tests.domains.activation_checkpoint.setting import (
    Noting,
    each_kind,
    either_kind,
    given,
    gradients,
    noting,
    seeded,
)
from hyper_parallel_tests.harness import assert_differs, assert_equal, contract, trace

BF16, FP32 = torch.bfloat16, torch.float32


class Dropping:
    """Dropout between two sines, which keeps what it let through in each run."""

    def __init__(self) -> None:
        self.runs: list[Tensor] = []

    def __call__(self, inputs: Tensor) -> Tensor:
        dropped = F.dropout(inputs.sin(), 0.5)
        self.runs.append(dropped.detach().clone())
        return dropped.sin()


@contract("AC-1-02")
@each_kind
def test_second_run_draws_what_the_first_drew(engine, world, options):
    """Dropout drops the same elements again, whatever was drawn in between, and the gradients are the plain ones."""
    region = Dropping()

    def apart(inputs: Tensor) -> Tensor:
        output = engine.checkpoint(region, inputs, **options)
        torch.rand(3, device=world.device)
        return output

    with seeded():
        expected = gradients(Dropping(), given(world.device))
    with seeded():
        found = gradients(apart, given(world.device))
    first, second = region.runs
    assert_equal(second, first, what="what dropout let through")
    assert_equal(found, expected, what="values")


@contract("AC-1-02")
@each_kind
def test_stream_goes_on_as_without_a_region(engine, world, options):
    """After backward the next random numbers are those that follow what was drawn before it."""
    with seeded():
        Dropping()(given(world.device))
        expected = torch.rand(8, device=world.device)
    with seeded():
        output = engine.checkpoint(Dropping(), given(world.device), **options)
        # Without these the second run would end where the first one did.
        found = torch.rand(3, device=world.device)
        output.sum().backward()
        found = torch.cat((found, torch.rand(5, device=world.device)))
        assert_equal(found, expected, what="next numbers")


@contract("AC-1-02")
@either_kind
def test_without_the_random_state(engine, world, ledger, options):
    """If told not to keep the random state, the second run draws on where the stream is, and moves it on."""
    region, reference = Dropping(), Dropping()
    with seeded():
        engine.checkpoint(region, given(world.device), preserve_rng_state=False, **options).sum().backward()
        following = torch.rand(5, device=world.device)
    with seeded():
        for _ in range(2):
            reference(given(world.device))
        assert_equal(following, torch.rand(5, device=world.device), what="next numbers")
    assert_equal(region.runs, reference.runs, what="what dropout let through")
    assert_differs(region.runs[1], region.runs[0], ledger["exact"], what="what dropout let through")


def autocast(world, dtype: torch.dtype | None) -> AbstractContextManager[Any]:
    """Autocast to a dtype, or none."""
    return nullcontext() if dtype is None else torch.autocast(world.device.type, dtype)


CASTS = {"forward": (BF16, None, BF16), "backward": (None, BF16, FP32), "both": (BF16, torch.float16, BF16)}


@contract("AC-1-02")
@each_kind
@pytest.mark.parametrize(("forward", "backward", "seen"), CASTS.values(), ids=CASTS)
def test_second_run_casts_as_the_first(engine, world, options, forward, backward, seen):
    """The second run computes in the dtypes of the first, whatever holds around backward, and so do the gradients."""
    dtypes: list[torch.dtype] = []

    def step(call: Any) -> dict[str, Tensor]:
        (layer,), _ = noting(["region"], world.device)
        layer.linear.register_forward_hook(lambda _, __, output: dtypes.append(output.dtype))
        inputs = given(world.device)
        with autocast(world, forward):
            output = call(layer, inputs)
        with autocast(world, backward):
            output.sum().backward()
            assert torch.is_autocast_enabled(world.device.type) == (backward is not None)
        named = {name: one.grad for name, one in layer.named_parameters()}
        return {"output": output.detach(), "input": inputs.grad} | named

    expected = step(Noting.__call__)
    assert dtypes == [seen]
    assert_equal(step(partial(engine.checkpoint, **options)), expected, what="values")
    assert dtypes == [seen] * 3


@contract("AC-1-02")
@either_kind
def test_autocast_inside(engine, world, options):
    """A region that leaves autocast on its own for a part does so again."""
    dtypes: list[torch.dtype] = []

    def region(layer: Noting, inputs: Tensor) -> Tensor:
        with torch.autocast(world.device.type, enabled=False):
            exact = layer.linear(inputs)
        rounded = layer.linear(exact)
        dtypes.extend((exact.dtype, rounded.dtype))
        return rounded.sin()

    (layer,), _ = noting(["region"], world.device)
    with torch.autocast(world.device.type, BF16):
        output = engine.checkpoint(partial(region, layer), given(world.device), **options)
    output.sum().backward()
    assert dtypes == [FP32, BF16] * 2


class Interruption(Exception):
    """What a run is left by."""


class Interrupted:
    """A region that draws and computes under autocast, and is left in the middle of its run of a chosen number."""

    def __init__(self, world, run: int) -> None:
        self.device, self.run, self.runs = world.device.type, run, 0

    def __call__(self, inputs: Tensor) -> Tensor:
        self.runs += 1
        with torch.autocast(self.device, BF16):
            hidden = F.dropout(inputs.sin(), 0.5)
            if self.runs == self.run:
                raise Interruption
            return (hidden @ hidden.T).sin()


def held_without_a_region(world) -> int:
    """Bytes that a layer that is no region holds between forward and backward."""
    layers, calls = noting(["plain"], world.device)
    with trace.made() as made:
        output = layers(given(world.device))
    held = made.held()
    output.sum().backward()
    assert calls == ["plain"]
    return held


@contract("AC-1-02")
@each_kind
@pytest.mark.parametrize("run", [1, 2], ids=["forward", "backward"])
def test_exception_leaves_no_state(engine, world, options, run):
    """After a run that was left by an exception, random numbers, autocast and saved tensors are as without it."""
    region = Interrupted(world, run)
    held = held_without_a_region(world)
    drawn: list[Tensor] = []

    def step() -> None:
        output = engine.checkpoint(region, given(world.device), **options)
        drawn.append(torch.rand(3, device=world.device))
        output.sum().backward()

    with seeded():
        # In forward the numbers are drawn, as without a region; in backward none are.
        Interrupted(world, 0)(given(world.device))
        expected = torch.rand(8, device=world.device)
    with seeded():
        with pytest.raises(Interruption):
            step()
        drawn.append(torch.rand(8, device=world.device))
        assert_equal(torch.cat(drawn)[:8], expected, what="next numbers")
    assert not torch.is_autocast_enabled(world.device.type)
    assert torch.is_grad_enabled()
    assert held_without_a_region(world) == held


@contract("AC-1-02")
@either_kind
def test_step_after_an_exception(engine, world, options):
    """The step that was left is repeated with the values of a step that nothing happened to."""
    with seeded():
        expected = gradients(Interrupted(world, 0), given(world.device))
    region = Interrupted(world, 2)
    with pytest.raises(Interruption):
        engine.checkpoint(region, given(world.device), **options).sum().backward()
    with seeded():
        found = gradients(partial(engine.checkpoint, region, **options), given(world.device))
    assert_equal(found, expected, what="values")
    assert region.runs == 4


@contract("AC-1-02")
def test_backward_after_an_exception(engine, world):
    """Backward over the same graph, kept, runs the region anew after a run that was left."""
    region = Interrupted(world, 2)
    inputs = given(world.device)
    with seeded():
        expected = gradients(Interrupted(world, 0), given(world.device))
    with seeded():
        output = engine.checkpoint(region, inputs)
    with pytest.raises(Interruption):
        output.sum().backward(retain_graph=True)
    output.sum().backward()
    assert_equal(inputs.grad, expected["input 0"], what="gradient")


@contract("AC-1-02")
@each_kind
@pytest.mark.parametrize("run", [1, 2], ids=["forward", "backward"])
def test_exception_holds_nothing(engine, world, options, run):
    """When the graph of a step that was left is gone, nothing that the region made is held."""
    region = Interrupted(world, run)
    with trace.made() as made, suppress(Interruption):
        engine.checkpoint(region, given(world.device), **options).sum().backward()
    assert region.runs == run
    assert made.held() == 0


@contract("AC-1-02")
@each_kind
def test_gradients_are_on_in_the_second_run(engine, world, options):
    """The second run records its graph, though backward may be called where gradients are off."""
    layers, _ = noting(["region"], world.device)
    expected = gradients(layers, given(world.device), module=layers)
    layers.zero_grad()
    inputs = given(world.device)
    output = engine.checkpoint(layers, inputs, **options)
    total = output.sum()
    with torch.no_grad():
        total.backward()
    found = {"output": output.detach(), "input 0": inputs.grad}
    found |= {name: one.grad for name, one in layers.named_parameters()}
    assert_equal(found, expected, what="values")

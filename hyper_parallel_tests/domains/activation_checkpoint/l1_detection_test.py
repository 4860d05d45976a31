"""Regions that are not the same when they run again."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest
import torch
from torch import Tensor

from hyper_parallel_tests.domains.activation_checkpoint.setting import REENTRANT, WIDTH, given, gradients
from hyper_parallel_tests.harness import assert_equal, contract

SIN, COS = torch.ops.aten.sin.default, torch.ops.aten.cos.default


class Changing:
    """A region that computes one thing in its first run and another in those after it."""

    def __init__(self, first: Callable[[Tensor], Tensor], then: Callable[[Tensor], Tensor]) -> None:
        self.first, self.then, self.runs = first, then, 0

    def __call__(self, inputs: Tensor) -> Tensor:
        self.runs += 1
        return self.first(inputs) if self.runs == 1 else self.then(inputs)


def sines(count: int, inputs: Tensor) -> Tensor:
    """Saves as many tensors."""
    for _ in range(count):
        inputs = inputs.sin()
    return inputs


def weighted(weight: Tensor, inputs: Tensor) -> Tensor:
    """Saves the weight alone, since it has no gradient itself."""
    return inputs * weight


@contract("AC-1-03")
@pytest.mark.parametrize("early_stop", [True, False], ids=["early", "whole"])
@pytest.mark.parametrize("again", [0, 1, 2])
def test_fewer_tensors(engine, world, early_stop, again):
    """A region that saves fewer tensors when it runs again ends in an error with both numbers."""
    region = Changing(partial(sines, 3), partial(sines, again))
    output = engine.checkpoint(region, given(world.device), early_stop=early_stop)
    with pytest.raises(RuntimeError, match=rf"(?s)different number of tensors.*forward: 3.*recomputation: {again}\b"):
        output.sum().backward()


@contract("AC-1-03")
def test_more_tensors(engine, world):
    """One that saves more ends in an error that says so, if the second run does not end early."""
    region = Changing(partial(sines, 2), partial(sines, 3))
    output = engine.checkpoint(region, given(world.device), early_stop=False)
    with pytest.raises(RuntimeError, match="more tensors during recomputation"):
        output.sum().backward()


@contract("AC-1-03")
def test_more_tensors_behind_an_early_stop(engine, world):
    """If it does, what would come after the last tensor is not computed, and the gradient is that of forward."""
    expected = gradients(partial(sines, 2), given(world.device))
    region = Changing(partial(sines, 2), partial(sines, 3))
    assert_equal(gradients(partial(engine.checkpoint, region), given(world.device)), expected, what="values")


CHANGED = {
    "shape": (torch.Size([1, WIDTH]), torch.float32),
    "rank": (torch.Size([]), torch.float32),
    "dtype": (torch.Size([WIDTH]), torch.float64),
}
each_change = pytest.mark.parametrize(("shape", "dtype"), CHANGED.values(), ids=CHANGED)


def reweighted(world, shape: torch.Size, dtype: torch.dtype) -> Changing:
    """A region that saves a weight (WIDTH,) in fp32, then one of another shape or dtype; both are ones."""
    first = torch.ones(WIDTH, device=world.device)
    return Changing(partial(weighted, first), partial(weighted, torch.ones(shape, dtype=dtype, device=world.device)))


@contract("AC-1-03")
@each_change
@pytest.mark.parametrize("early_stop", [True, False], ids=["early", "whole"])
def test_other_shape_or_dtype(engine, world, shape, dtype, early_stop):
    """A saved tensor of another shape or dtype ends in an error that has its place and both."""
    output = engine.checkpoint(reweighted(world, shape, dtype), given(world.device), early_stop=early_stop)
    with pytest.raises(RuntimeError, match="different metadata") as caught:
        output.sum().backward()
    message = str(caught.value)
    assert "position 0" in message
    before, after = message.split("recomputed metadata", 1)
    assert str(torch.Size([WIDTH])) in before
    assert str(torch.float32) in before
    assert str(shape) in after
    assert str(dtype) in after


@contract("AC-1-03")
def test_each_tensor_that_changed_is_named(engine, world):
    """Of several tensors the error has the places of those that changed, and of no other."""

    def thrice(middle: Tensor, inputs: Tensor) -> Tensor:
        ones = torch.ones(WIDTH, device=world.device)
        return inputs * ones * middle * ones

    shapes = (WIDTH,), (1, WIDTH)
    region = Changing(*(partial(thrice, torch.ones(shape, device=world.device)) for shape in shapes))
    output = engine.checkpoint(region, given(world.device))
    with pytest.raises(RuntimeError, match="position 1") as caught:
        output.sum().backward()
    assert "position 0" not in str(caught.value)
    assert "position 2" not in str(caught.value)


@contract("AC-1-03")
def test_unchecked_shapes(engine, world):
    """Without the check shapes pass as long as backward can go on with them; the number of tensors does not."""
    expected = gradients(lambda one: one * 1, given(world.device))
    region = reweighted(world, *CHANGED["shape"])
    found = gradients(partial(engine.checkpoint, region, determinism_check="none"), given(world.device))
    assert_equal(found, expected, what="values")
    fewer = Changing(partial(sines, 2), partial(sines, 1))
    output = engine.checkpoint(fewer, given(world.device), determinism_check="none")
    with pytest.raises(RuntimeError, match="different number of tensors"):
        output.sum().backward()


@contract("AC-1-03")
@pytest.mark.parametrize("options", [{}, {"early_stop": False}, REENTRANT], ids=["default", "whole", "reentrant"])
def test_other_values_pass(engine, world, options):
    """Values are not compared: the gradient is that of what ran last."""
    one, two = (torch.full((WIDTH,), value, device=world.device) for value in (1.0, 2.0))
    expected = gradients(partial(weighted, two), given(world.device))
    region = Changing(partial(weighted, one), partial(weighted, two))
    found = gradients(partial(engine.checkpoint, region, **options), given(world.device))
    assert_equal(found["input 0"], expected["input 0"], what="gradient")


@contract("AC-1-03")
def test_reentrant_region_compares_nothing(engine, world):
    """A reentrant region that changes altogether has the gradient of what ran last."""
    expected = gradients(partial(sines, 3), given(world.device))
    region = Changing(partial(sines, 1), partial(sines, 3))
    found = gradients(partial(engine.checkpoint, region, **REENTRANT), given(world.device))
    assert_equal(found["input 0"], expected["input 0"], what="gradient")


@contract("AC-1-03")
@pytest.mark.parametrize("options", [{}, {"policy_fn": [SIN]}, REENTRANT], ids=["default", "selective", "reentrant"])
def test_input_that_was_written_to(engine, world, options):
    """A region whose input was written to between its runs ends in an error that says so."""
    inputs = given(world.device) * 1
    output = engine.checkpoint(partial(sines, 2), inputs, **options)
    with torch.no_grad():
        inputs.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        output.sum().backward()


@contract("AC-1-03")
@pytest.mark.parametrize(
    ("then", "message"),
    [(lambda one: one.sin().cos().cos(), "aten.cos"), (lambda one: one.sin().tan().exp(), "aten.tan")],
    ids=["more_often", "another"],
)
def test_other_operators(engine, world, then, message):
    """A selective region that calls another operator, or one more often, ends in an error that names it."""
    region = Changing(lambda one: one.sin().cos().exp(), then)
    output = engine.checkpoint(region, given(world.device), policy_fn=[SIN, COS], early_stop=False)
    with pytest.raises(RuntimeError, match=message):
        output.sum().backward()


@contract("AC-1-03")
@pytest.mark.parametrize("allowed", [False, True], ids=["refused", "allowed"])
def test_kept_output_that_was_written_to(engine, world, allowed):
    """A kept output that the region itself writes to is an error in backward, unless that is allowed."""

    def region(inputs: Tensor) -> Tensor:
        hidden = inputs.sin()
        return hidden.mul_(1).cos()

    contexts = partial(engine.create_selective_checkpoint_contexts, [SIN], allow_cache_entry_mutation=allowed)
    inputs = given(world.device)
    expected = gradients(region, given(world.device))
    output = torch.utils.checkpoint.checkpoint(region, inputs, use_reentrant=False, context_fn=contexts)
    if not allowed:
        with pytest.raises(RuntimeError, match="has been mutated"):
            output.sum().backward()
        return
    output.sum().backward()
    assert_equal(inputs.grad, expected["input 0"], what="gradient")


@contract("AC-1-03")
def test_step_after_a_change(engine, world):
    """After the error a step of regions that do not change has the values that it has without it."""
    region = Changing(partial(sines, 2), partial(sines, 1))
    output = engine.checkpoint(region, given(world.device))
    with pytest.raises(RuntimeError, match="different number of tensors"):
        output.sum().backward()
    expected = gradients(partial(sines, 1), given(world.device))
    assert_equal(gradients(partial(engine.checkpoint, region), given(world.device)), expected, what="values")

"""Hooks inside a region and around it, and where the second run ends."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import pytest
from torch import Tensor, nn

from hyper_parallel_tests.domains.activation_checkpoint.setting import KINDS, REENTRANT, given, gradients, noting
from hyper_parallel_tests.harness import assert_equal, contract, trace

FORWARD = ["forward_pre root", "forward_pre 0", "forward 0", "forward_pre 1", "forward 1", "forward root"]
BACKWARD = ["backward_pre root", "backward_pre 1", "backward 1", "backward_pre 0", "backward 0", "backward root"]


def layers_of(world) -> nn.Sequential:
    """Two layers; the hooks are on them and on the whole."""
    return nn.Sequential(*(one.linear for one in noting("ab", world.device)[0]))


@contract("AC-1-02")
@pytest.mark.parametrize("options", [KINDS["whole"], REENTRANT], ids=["whole", "reentrant"])
def test_hooks_inside(engine, world, options):
    """Forward hooks inside a region fire in both runs, in their order, and backward hooks once."""
    inner = layers_of(world)
    region = engine.checkpoint_wrapper(inner, **options)
    with trace.hooks(inner) as events:
        output = region(given(world.device))
        assert events == FORWARD
        output.sum().backward()
    again = events[len(FORWARD) :]
    assert [line for line in again if line.startswith("forward")] == FORWARD
    assert [line for line in again if line.startswith("backward")] == BACKWARD


@contract("AC-1-02")
def test_hooks_behind_an_early_stop(engine, world):
    """If the second run ends early, forward hooks behind its end do not fire again; backward hooks fire once."""
    inner = layers_of(world)
    region = engine.checkpoint_wrapper(inner)
    with trace.hooks(inner) as events:
        region(given(world.device)).sum().backward()
    again = events[len(FORWARD) :]
    # The last layer's weight and input are the last that backward needs: there the run ends.
    assert [line for line in again if line.startswith("forward")] == FORWARD[:4]
    assert [line for line in again if line.startswith("backward")] == BACKWARD


@contract("AC-1-02")
@pytest.mark.parametrize("options", KINDS.values(), ids=KINDS)
def test_hooks_of_the_wrapper(engine, world, options):
    """Hooks of the wrapper itself fire once a step."""
    region = engine.checkpoint_wrapper(layers_of(world), **options)
    with trace.hooks(region) as events:
        region(given(world.device)).sum().backward()
    assert events.of("root") == ["forward_pre", "forward", "backward_pre", "backward"]


@contract("AC-1-02")
@pytest.mark.parametrize("options", KINDS.values(), ids=KINDS)
def test_hooks_that_change_what_they_see(engine, world, options):
    """What hooks put in the place of inputs and outputs stands there in both runs."""

    def hooked() -> nn.Sequential:
        layers = layers_of(world)
        layers[0].register_forward_pre_hook(lambda _, args: (args[0].sin(),))
        layers[0].register_forward_hook(lambda _, __, output: output.cos())
        layers[1].register_full_backward_hook(lambda _, grads, __: (2 * grads[0],))
        return layers

    plain, inner = hooked(), hooked()
    expected = gradients(plain, given(world.device), module=plain)
    region = engine.checkpoint_wrapper(inner, **options)
    assert_equal(gradients(region, given(world.device), module=inner), expected, what="values")


@contract("AC-1-02")
@pytest.mark.parametrize("options", [{}, KINDS["whole"], KINDS["selective"]], ids=["default", "whole", "selective"])
def test_hooks_of_tensors(engine, world, options):
    """A hook that a region puts on a tensor in both runs fires once, for the gradient that it would have without."""
    seen: list[Tensor] = []

    def region(inputs: Tensor) -> Tensor:
        hidden = inputs.sin()
        hidden.register_hook(seen.append)
        return hidden.cos()

    gradients(region, given(world.device))
    gradients(lambda one: engine.checkpoint(region, one, **options), given(world.device))
    assert len(seen) == 2
    assert_equal(seen[1], seen[0], what="gradient")


class Tail:
    """A region with a part behind the last tensor that it saves, which counts its runs."""

    def __init__(self) -> None:
        self.runs = 0

    def __call__(self, inputs: Tensor) -> Tensor:
        output = inputs.sin().cos()
        self.runs += 1
        return output + 1


@contract("AC-1-02")
@pytest.mark.parametrize(
    ("options", "runs"),
    [({}, 1), ({"early_stop": True}, 1), ({"early_stop": False}, 2), (REENTRANT, 2)],
    ids=["default", "early", "whole", "reentrant"],
)
def test_second_run_ends_early(engine, world, options, runs):
    """The second run ends with the last tensor that backward needs, unless it is told not to or is reentrant."""
    tail = Tail()
    expected = gradients(Tail(), given(world.device))
    found = gradients(lambda one: engine.checkpoint(tail, one, **options), given(world.device))
    assert_equal(found, expected, what="values")
    assert tail.runs == runs


def runs_under(engine, world, context: AbstractContextManager[Any], **options: Any) -> int:
    """Runs of a region's tail if the region is made under a context; backward is outside of it."""
    tail = Tail()
    with context:
        output = engine.checkpoint(tail, given(world.device), **options)
    output.sum().backward()
    return tail.runs


@contract("AC-1-02")
def test_early_stop_of_a_context(engine, world):
    """A context decides in the place of the option, for regions that are made in it, until it is left."""
    stop = engine.set_checkpoint_early_stop
    assert runs_under(engine, world, stop(False)) == 2
    assert runs_under(engine, world, stop(True), early_stop=False) == 1
    with stop(False):
        assert runs_under(engine, world, stop(True)) == 1
        assert runs_under(engine, world, nullcontext()) == 2
    with pytest.raises(ZeroDivisionError), stop(False):
        raise ZeroDivisionError
    assert runs_under(engine, world, nullcontext()) == 1
    assert runs_under(engine, world, nullcontext(), early_stop=False) == 2

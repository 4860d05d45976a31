"""When a region runs again, and what is held until then."""

from __future__ import annotations

import weakref
from functools import partial

import pytest
import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks

from hyper_parallel_tests.domains.activation_checkpoint.setting import (
    KINDS,
    ROWS,
    WIDTH,
    each_kind,
    either_kind,
    given,
    gradients,
    noting,
)
from hyper_parallel_tests.harness import assert_equal, contract, trace

ONE = trace.size_of(ROWS, WIDTH)


@contract("AC-1-01")
@each_kind
@pytest.mark.parametrize("form", ["function", "wrapper"])
def test_only_the_region_runs_again(engine, world, options, form):
    """Forward runs each layer once, backward runs the region once more and no layer before or behind it."""
    layers, calls = noting(["before", "region", "behind"], world.device)
    before, inner, behind = layers
    inside = partial(engine.checkpoint, inner, **options)
    if form == "wrapper":
        inside = engine.checkpoint_wrapper(inner, **options)
    output = behind(inside(before(given(world.device))))
    assert calls == ["before", "region", "behind"]
    output.sum().backward()
    assert calls == ["before", "region", "behind", "region"]


@contract("AC-1-01")
@each_kind
def test_regions_run_when_backward_reaches_them(engine, world, options):
    """Of several regions the last runs first, each when its own gradient is due, and the values are the plain ones."""
    layers, calls = noting("abcd", world.device)
    plain, _ = noting("abcd", world.device)
    expected = gradients(plain, given(world.device), module=plain)
    for place in (0, 2, 3):
        layers[place].register_full_backward_hook(lambda module, *_: calls.append(f"gradient of {module.name}"))

    def network(inputs: Tensor) -> Tensor:
        for place, layer in enumerate(layers):
            inputs = layer(inputs) if place == 1 else engine.checkpoint(layer, inputs, **options)
        return inputs

    assert_equal(gradients(network, given(world.device), module=layers), expected, what="values")
    assert calls[:4] == list("abcd")
    # The first gradient is due before the second region runs; `b` is no region.
    assert calls[4:] == ["d", "gradient of d", "c", "gradient of c", "a", "gradient of a"]


@contract("AC-1-01")
@each_kind
def test_region_that_backward_does_not_reach(engine, world, options):
    """Neither a region without gradients nor one that the loss does not depend on runs again."""
    layers, calls = noting(["used", "unused"], world.device)
    with torch.no_grad():
        engine.checkpoint(layers[0], given(world.device), **options)
    assert calls == ["used"]
    calls.clear()
    used, _ = (engine.checkpoint(layer, given(world.device), **options) for layer in layers)
    used.sum().backward()
    assert calls == ["used", "unused", "used"]


@contract("AC-1-01")
@each_kind
def test_second_step(engine, world, options):
    """A second step runs the region twice again, with the values of a step without a region."""
    layers, calls = noting(["region"], world.device)
    plain, _ = noting(["region"], world.device)
    for step in range(2):
        inputs = given(world.device, seed=step)
        expected = gradients(plain, inputs, module=plain)
        found = gradients(partial(engine.checkpoint, layers, **options), inputs, module=layers)
        assert_equal(found, expected, what=f"values of step {step}")
        assert calls == ["region"] * 2
        calls.clear()


@contract("AC-1-01")
@each_kind
def test_steps_of_other_shapes(engine, world, options):
    """Steps of more and of fewer rows, with evaluation between them, run the region twice each and evaluation once."""
    layers, calls = noting(["region"], world.device)
    plain, _ = noting(["region"], world.device)
    region = partial(engine.checkpoint, layers, **options)
    for rows in (2 * ROWS, ROWS, 1):
        inputs = torch.cat([given(world.device), given(world.device, seed=1)]).detach()[:rows].requires_grad_()
        with torch.no_grad():
            assert_equal(region(inputs), plain(inputs), what=f"output of {rows} rows in evaluation")
        assert calls == ["region"]
        expected = gradients(plain, inputs, module=plain)
        assert_equal(gradients(region, inputs, module=layers), expected, what=f"values of {rows} rows")
        assert calls == ["region"] * 3
        calls.clear()


@contract("AC-1-01")
@each_kind
def test_several_outputs(engine, world, options):
    """A region of several outputs, of which the loss uses two, runs again once for both."""
    layers, calls = noting("abc", world.device)

    def fork(inputs: Tensor) -> tuple[Tensor, ...]:
        return tuple(layer(inputs) for layer in layers)

    inputs = given(world.device)
    expected = gradients(lambda one: fork(one)[0] * fork(one)[2], inputs, module=layers)
    calls.clear()

    def loss(one: Tensor) -> Tensor:
        first, _, last = engine.checkpoint(fork, one, **options)
        return first * last

    found = gradients(loss, inputs, module=layers)
    # A reentrant region has gradients of zero where others have none.
    assert_equal({name: found[name] for name in expected}, expected, what="values")
    assert sorted(calls) == list("aabbcc")


@contract("AC-1-01")
def test_each_backward_runs_the_region(engine, world):
    """Two backward passes over one graph run the region once each, and their gradients add up."""
    layers, calls = noting(["region"], world.device)
    inputs = given(world.device)
    output = engine.checkpoint(layers, inputs)
    output.sum().backward(retain_graph=True)
    once = inputs.grad.clone()
    assert calls == ["region"] * 2
    output.sum().backward()
    assert calls == ["region"] * 3
    assert_equal(inputs.grad, 2 * once, what="gradient")


@contract("AC-1-01")
def test_kept_outputs_serve_one_backward(engine, world):
    """A region that keeps outputs gives them to one backward pass, and tells a second one so."""
    layers, _ = noting(["region"], world.device)
    output = engine.checkpoint(layers, given(world.device), **KINDS["selective"])
    output.sum().backward(retain_graph=True)
    with pytest.raises(RuntimeError, match="backward an extra time"):
        output.sum().backward()


@contract("AC-1-01")
@either_kind
def test_gradient_of_chosen_inputs(engine, world, options):
    """A region runs again for the gradient of an input alone; a reentrant one says that it cannot."""
    layers, calls = noting(["region"], world.device)
    inputs = given(world.device)
    (expected,) = torch.autograd.grad(layers(inputs).sum(), inputs)
    calls.clear()
    output = engine.checkpoint(layers, inputs, **options)
    if options:
        with pytest.raises(RuntimeError, match="use_reentrant=True.*incompatible"):
            torch.autograd.grad(output.sum(), inputs)
        return
    assert_equal(torch.autograd.grad(output.sum(), inputs)[0], expected, what="gradient")
    assert calls == ["region"] * 2


def three_operators(inputs: Tensor) -> Tensor:
    """Each saves what it is given."""
    return inputs.sin().cos().sin()


HELD = {
    "plain": (None, 3),
    "default": ({}, 1),
    "whole": ({"early_stop": False}, 1),
    "reentrant": (KINDS["reentrant"], 1),
}
HELD["selective"] = ({"policy_fn": [torch.ops.aten.cos.default]}, 2)
HELD["nothing_kept"] = ({"policy_fn": [torch.ops.aten.addmm.default]}, 1)


@contract("AC-1-01")
@pytest.mark.parametrize(("options", "tensors"), HELD.values(), ids=HELD)
def test_bytes_held_between(engine, world, options, tensors):
    """Between forward and backward only the output is held of what the region made, and what a policy keeps."""
    inputs = given(world.device)
    with trace.made() as made:
        output = three_operators(inputs) if options is None else engine.checkpoint(three_operators, inputs, **options)
    assert made.held() == tensors * ONE
    output.sum().backward()
    assert made.held() == ONE, "more than the output is held after backward"
    del output
    assert made.held() == 0


@contract("AC-1-01")
@each_kind
def test_bytes_held_after_backward(engine, world, options):
    """Nothing that the second run made is held after backward, but the gradient."""
    inputs = given(world.device)
    output = engine.checkpoint(three_operators, inputs, **options)
    with trace.made() as made:
        output.sum().backward()
    assert made.held() == ONE
    assert inputs.grad is not None


@contract("AC-1-01")
@each_kind
def test_input_is_held_until_backward(engine, world, options):
    """The region itself holds its input, which nobody else does, and lets it go with the graph."""
    inputs = given(world.device) * 1
    gone = weakref.ref(inputs)
    output = engine.checkpoint(three_operators, inputs, **options)
    del inputs
    assert gone() is not None
    output.sum().backward()
    del output
    assert gone() is None


@contract("AC-1-01")
@pytest.mark.parametrize(
    "options", [{}, KINDS["reentrant"], KINDS["selective"]], ids=["default", "reentrant", "selective"]
)
def test_hooks_around_the_region_see_its_input(engine, world, options):
    """Hooks for saved tensors around a region get its input, once, and give it back once."""
    packed, unpacked = [], []

    def pack(tensor: Tensor) -> Tensor:
        packed.append(tensor)
        return tensor

    def unpack(tensor: Tensor) -> Tensor:
        unpacked.append(tensor)
        return tensor

    inputs = given(world.device)
    with saved_tensors_hooks(pack, unpack):
        output = engine.checkpoint(three_operators, inputs, **options)
    assert [one.data_ptr() for one in packed] == [inputs.data_ptr()]
    output.sum().backward()
    assert len(packed) == len(unpacked) == 1

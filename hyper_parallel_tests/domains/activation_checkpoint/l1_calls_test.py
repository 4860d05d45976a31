"""What a region is given and gives: arguments of any kind, regions in regions, inputs without gradients."""

from __future__ import annotations

import warnings
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from hyper_parallel_tests.domains.activation_checkpoint.setting import (
    KINDS,
    REENTRANT,
    ROWS,
    SEED,
    WIDTH,
    Noting,
    each_kind,
    either_kind,
    given,
    gradients,
    noting,
)
from hyper_parallel_tests.harness import assert_equal, contract, trace
from hyper_parallel_tests.models.seeding import build

NOT_REENTRANT = {name: options for name, options in KINDS.items() if name != "reentrant"}
each_not_reentrant = pytest.mark.parametrize("options", NOT_REENTRANT.values(), ids=NOT_REENTRANT)


class Wanting(nn.Module):
    """Takes what users pass: tensors by place and by name, nested ones, None, numbers, words; notes what came."""

    def __init__(self) -> None:
        super().__init__()
        self.came: list[Any] = []

    def forward(
        self, inputs: Tensor, pair: Any, mask: Tensor | None, power: int, *, scale: Tensor, way: str = "none"
    ) -> Any:
        self.came.append((mask, power, way, [sorted(pair[1]), type(pair[0])]))
        hidden = inputs.sin() * scale + pair[0][0].cos() + pair[1]["inner"].exp() ** power
        return {"hidden": hidden.sin() if way == "sine" else hidden, "nothing": None, "rest": (power, hidden.cos())}


def call(wanting: Any, tensors: list[Tensor]) -> Tensor:
    """Calls it with four tensors in four places; the sum of what comes back, whose structure is looked at."""
    inputs, in_tuple, in_dict, by_name = tensors
    result = wanting(inputs, ((in_tuple, 1), {"inner": in_dict}), None, 2, scale=by_name, way="sine")
    assert list(result) == ["hidden", "nothing", "rest"]
    assert result["nothing"] is None
    assert result["rest"][0] == 2
    return result["hidden"] + result["rest"][1]


@contract("AC-1-02")
@each_not_reentrant
@pytest.mark.parametrize("form", ["function", "wrapper"])
def test_arguments_of_any_kind(engine, world, options, form):
    """Both runs get all arguments as they were given, tensors in any place get their gradients, results keep form."""
    wanting = Wanting()
    region = partial(engine.checkpoint, wanting, **options)
    if form == "wrapper":
        region = engine.checkpoint_wrapper(wanting, **options)
    tensors = [given(world.device, seed=i) for i in range(4)]
    expected = gradients(lambda *all: call(Wanting(), list(all)), *tensors)
    found = gradients(lambda *all: call(region, list(all)), *tensors)
    assert_equal(found, expected, what="values")
    assert wanting.came == [(None, 2, "sine", [["inner"], tuple])] * 2


class Scaled(nn.Module):
    """A layer that is scaled and masked by keyword."""

    def forward(self, inputs: Tensor, *, scale: Tensor, mask: Tensor | None = None, power: int = 1) -> Tensor:
        hidden = (inputs * scale).sin() ** power
        return hidden if mask is None else hidden * mask


@contract("AC-1-02")
def test_keywords_of_a_reentrant_region(engine, world):
    """A reentrant wrapper passes keywords on, tensors and others; the function refuses them by name."""
    tensors = [given(world.device, seed=i) for i in range(3)]

    def called(region: Any, inputs: Tensor, scale: Tensor, mask: Tensor) -> Tensor:
        return region(inputs, scale=scale, mask=mask, power=2)

    expected = gradients(partial(called, Scaled()), *tensors)
    region = engine.checkpoint_wrapper(Scaled(), **REENTRANT)
    assert_equal(gradients(partial(called, region), *tensors), expected, what="values")
    with pytest.raises(ValueError, match="keyword arguments: scale"):
        engine.checkpoint(Scaled(), tensors[0], scale=tensors[1], **REENTRANT)


@contract("AC-1-02")
def test_places_of_a_reentrant_region(engine, world):
    """A reentrant region gets None and numbers by place in both runs."""
    came: list[Any] = []

    def region(inputs: Tensor, mask: Tensor | None, power: int) -> Tensor:
        came.append((mask, power))
        return inputs.sin() ** power

    expected = gradients(lambda one: region(one, None, 2), given(world.device))
    found = gradients(lambda one: engine.checkpoint(region, one, None, 2, **REENTRANT), given(world.device))
    assert_equal(found, expected, what="values")
    assert came == [(None, 2)] * 3


@contract("AC-1-02")
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"policy_fn": [torch.ops.aten.mm.default], **REENTRANT}, "use_reentrant=False"),
        ({"determinism_check": "values"}, "determinism_check should be one of .*default"),
    ],
    ids=["selective_reentrant", "check"],
)
def test_options_that_do_not_exist(engine, world, options, message):
    """Options that no region has, or not a reentrant one, are refused when the region is called."""
    with pytest.raises(ValueError, match=message):
        engine.checkpoint(torch.sin, given(world.device), **options)


@contract("AC-1-02")
@pytest.mark.parametrize("inner", KINDS.values(), ids=KINDS)
@pytest.mark.parametrize("outer", [{}, KINDS["whole"], REENTRANT], ids=["default", "whole", "reentrant"])
def test_region_in_a_region(engine, world, outer, inner):
    """The outer region runs twice, the inner one once more for its own backward, and the values are the plain ones."""
    layers, calls = noting(["outer", "inner", "last"], world.device)
    expected = gradients(layers, given(world.device), module=layers)
    calls.clear()

    def region(inputs: Tensor) -> Tensor:
        return layers[2](engine.checkpoint(layers[1], layers[0](inputs), **inner))

    found = gradients(lambda one: engine.checkpoint(region, one, **outer), given(world.device), module=layers)
    assert_equal(found, expected, what="values")
    assert [calls.count(name) for name in ("outer", "inner", "last")] == [2, 3, 2]


@contract("AC-1-02")
@either_kind
def test_regions_in_regions_hold_one_output(engine, world, options):
    """Regions three deep hold between forward and backward what one holds."""

    def nested(depth: int, inputs: Tensor) -> Tensor:
        deeper = partial(nested, depth - 1) if depth else torch.sin
        return engine.checkpoint(deeper, inputs.sin(), **options).cos()

    inputs = given(world.device)
    with trace.made() as made:
        output = engine.checkpoint(partial(nested, 2), inputs, **options)
    assert made.held() == trace.size_of(ROWS, WIDTH)
    output.sum().backward()


@contract("AC-1-02")
@each_not_reentrant
def test_inputs_without_gradients(engine, world, options):
    """Parameters of a region get their gradients though none of its inputs wants any, and tokens may be inputs."""
    (layer,), calls = noting(["region"], world.device)
    inputs = given(world.device, requires_grad=False)

    layer(inputs).sum().backward()
    expected = {name: one.grad for name, one in layer.named_parameters()}
    layer.zero_grad()
    calls.clear()
    output = engine.checkpoint(layer, inputs, **options)
    assert output.requires_grad, "the parameters want gradients"
    output.sum().backward()
    assert_equal({name: one.grad for name, one in layer.named_parameters()}, expected, what="gradients")
    assert calls == ["region"] * 2

    table = build(lambda: nn.Embedding(5, WIDTH), SEED).to(world.device)
    tokens = torch.tensor([3, 0, 3], device=world.device)
    table(tokens).sin().sum().backward()
    expected = table.weight.grad.clone()
    table.zero_grad()
    engine.checkpoint(lambda one: table(one).sin(), tokens, **options).sum().backward()
    assert_equal(table.weight.grad, expected, what="gradient")


@contract("AC-1-02")
def test_reentrant_region_without_gradients(engine, world):
    """A reentrant region warns that without an input that wants gradients it gives none."""
    (layer,), calls = noting(["region"], world.device)
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        output = engine.checkpoint(layer, given(world.device, requires_grad=False), **REENTRANT)
    assert not output.requires_grad
    assert calls == ["region"]
    assert ["Gradients will be None" in str(one.message) for one in warned] == [True]


@contract("AC-1-02")
@each_kind
@pytest.mark.parametrize("frozen", ["weight", "bias", "both"])
def test_frozen_parameters(engine, world, options, frozen):
    """Frozen parameters of a region have no gradient, and the input has the one that it has without a region."""

    def partly_frozen() -> Noting:
        (layer,), _ = noting(["region"], world.device)
        for name, param in layer.linear.named_parameters():
            param.requires_grad_(frozen not in (name, "both"))
        return layer

    plain, layer = partly_frozen(), partly_frozen()
    expected = gradients(plain, given(world.device), module=plain)
    found = gradients(partial(engine.checkpoint, layer, **options), given(world.device), module=layer)
    assert_equal(found, expected, what="values")


@contract("AC-1-02")
@each_kind
def test_part_without_gradients(engine, world, options):
    """A part of a region that is computed without gradients is a constant in both runs."""

    def region(inputs: Tensor) -> Tensor:
        with torch.no_grad():
            size = inputs.norm()
        return (inputs / size).sin()

    expected = gradients(region, given(world.device))
    found = gradients(partial(engine.checkpoint, region, **options), given(world.device))
    assert_equal(found, expected, what="values")

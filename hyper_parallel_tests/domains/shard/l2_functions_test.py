"""Functions of parts against the functions on whole tensors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
import torch

from hyper_parallel_tests.domains.shard.derivatives import (
    SCALE,
    assert_as_whole,
    doubled_product,
    grid_of,
    in_tuple,
    on_whole_tensors,
    operand,
    operands,
    operands_on,
)
from hyper_parallel_tests.domains.shard.setting import kind_of, layout, mesh_of, numbers, on
from hyper_parallel_tests.harness import World, assert_equal, contract, in_clean_process


def product(left: Any, right: Any) -> Any:
    return torch.matmul(left, right)


def rectified(left: Any, right: Any) -> Any:
    return torch.relu(torch.matmul(left, right))


def two_results(left: Any, right: Any) -> tuple[Any, Any]:
    return torch.matmul(left, right), right * right


class Sharded(NamedTuple):
    """How a function of two tensors is computed in parts: the kinds of its inputs and of its results."""

    function: Callable[[Any, Any], Any]
    inputs: tuple[str, str]
    outputs: tuple[str, ...]


WAYS = {
    "rows": Sharded(rectified, ("S0", "R"), ("S0",)),
    "columns": Sharded(rectified, ("R", "S1"), ("S1",)),
    "terms": Sharded(product, ("S1", "S0"), ("P",)),
    "whole": Sharded(rectified, ("R", "R"), ("R",)),
    "divided_and_whole_results": Sharded(two_results, ("S0", "R"), ("S0", "R")),
}
each_way = pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)


def sharded(engine: Any, world: World, way: Sharded, **options: Any) -> Callable[..., Any]:
    return engine.custom_shard(
        way.function,
        device_mesh=mesh_of(world),
        out_placements=tuple(layout(engine, kind) for kind in way.outputs),
        in_placements=tuple(layout(engine, kind) for kind in way.inputs),
        **options,
    )


@contract("SH-2-02")
@each_way
def test_sharded_function(engine, world, way):
    """Results lie as they should, and they and the gradients are those of the function."""
    given = operands(engine, world, way.inputs)
    results = sharded(engine, world, way)(*given)
    assert [kind_of(engine, one) for one in in_tuple(results)] == list(way.outputs)
    assert_as_whole(engine, given, results, way.function)


@contract("SH-2-02")
def test_mesh_of_two_dimensions(engine, world):
    """Rows divided along one mesh dimension and terms along the other."""
    mesh = grid_of(world)
    kinds = ("S0", "S1"), ("R", "S0")
    given = operands_on(engine, mesh, kinds)
    inputs = tuple(layout(engine, *each) for each in kinds)
    found = engine.custom_shard(product, mesh, (layout(engine, "S0", "P"),), inputs)(*given)
    assert tuple(found.placements) == layout(engine, "S0", "P")
    assert_as_whole(engine, given, found, product)


@contract("SH-2-02")
def test_gradient_of_a_shared_input(engine, world):
    """What backward leaves on each rank of a replicated input is the sum of all ranks' terms, for any optimizer."""
    given = operands(engine, world, WAYS["rows"].inputs)
    engine.backward(sharded(engine, world, WAYS["rows"])(*given), operand(9))
    gradient = given[1].grad
    here = gradient.to_local() if isinstance(gradient, engine.DTensor) else gradient
    _, gradients = on_whole_tensors(rectified)
    assert_equal(here, gradients[1], what="gradient on this rank")


@contract("SH-2-02")
def test_input_of_terms(engine, world):
    """A function that takes the terms of another's result as they are hands each the gradient of their sum."""
    terms = (layout(engine, "P"),)
    given = operands(engine, world, WAYS["terms"].inputs)
    between = sharded(engine, world, WAYS["terms"])(*given)
    found = engine.custom_shard(lambda one: SCALE * one, mesh_of(world), terms, terms)(between)
    assert kind_of(engine, found) == "P"
    assert_as_whole(engine, given, found, doubled_product)


@contract("SH-2-02")
@pytest.mark.parametrize("kinds", [("R", "R"), ("S1", "S0"), ("S0", "S1")], ids="-".join)
def test_inputs_that_lie_otherwise(engine, world, kinds):
    """They are laid out anew, and gradients come back to them."""
    given = operands(engine, world, kinds)
    results = sharded(engine, world, WAYS["rows"])(*given)
    assert_as_whole(engine, given, results, rectified)


@contract("SH-2-02")
def test_inputs_are_refused_if_asked_for(engine, world):
    """Without redistribution an input that lies otherwise is an error, and one that lies so is not."""
    function = sharded(engine, world, WAYS["rows"], redistribute_inputs=False)
    given = operands(engine, world, ("S0", "R"))
    assert_as_whole(engine, given, function(*given), rectified)
    with pytest.raises((ValueError, TypeError, RuntimeError, AssertionError), match="Shard|placement"):
        function(*operands(engine, world, ("S1", "R")))


@contract("SH-2-02")
def test_function_sees_parts(engine, world):
    """It gets this rank's part of each distributed tensor, and other arguments as they are, and so it returns them."""
    seen: list[Any] = []

    def keep(left: Any, number: int, nothing: None, *, flag: bool) -> tuple[Any, int, None]:
        seen.extend((left, number, nothing, flag))
        return left, number, nothing

    mesh, rows = mesh_of(world), layout(engine, "S0")
    function = engine.custom_shard(keep, mesh, out_placements=(rows, None, None), in_placements=(rows, None, None))
    found, *others = function(on(engine, mesh, operand(0), "S0"), 3, None, flag=True)
    assert not isinstance(seen[0], engine.DTensor)
    assert_equal(seen[0], operand(0).chunk(world.size)[world.rank], what="part")
    assert (seen[1:], others) == ([3, None, True], [3, None])
    assert_equal(found, operand(0), what="result")


@contract("SH-2-02")
def test_plain_tensors(engine, world):
    """Without a distributed tensor the function is called as it is."""
    mesh = mesh_of(world)
    function = engine.custom_shard(rectified, mesh, out_placements=(layout(engine, "S0"),))
    found = function(operand(0), operand(1))
    assert not isinstance(found, engine.DTensor)
    assert_equal(found, in_clean_process(rectified, operand(0), operand(1)), what="result")


REFUSED = {
    "no_placements": (None, ("S0",)),
    "fewer_inputs": (("S0",), ("S0",)),
    "tensor_without_placements": (("S0", None), ("S0",)),
    "more_results": (("S0", "R"), ("S0", "R")),
    "result_without_placements": (("S0", "R"), (None,)),
}


@contract("SH-2-02")
@pytest.mark.parametrize(("inputs", "outputs"), REFUSED.values(), ids=REFUSED)
def test_placements_that_do_not_fit(engine, world, inputs, outputs):
    """Each mismatch of placements with arguments or results is an error that speaks of them."""

    def layouts(kinds: Any) -> Any:
        return kinds if kinds is None else tuple(one if one is None else layout(engine, one) for one in kinds)

    mesh = mesh_of(world)
    function = engine.custom_shard(rectified, mesh, out_placements=layouts(outputs), in_placements=layouts(inputs))
    with pytest.raises((ValueError, TypeError, RuntimeError, AssertionError), match=r"(?i)placement"):
        function(*operands(engine, world, ("S0", "R")))


ILL_MADE = {
    "more_than_dimensions": lambda engine: layout(engine, "S0", "R"),
    "fewer_than_dimensions": lambda engine: (),
    "no_tuple": lambda engine: engine.Shard(0),
}


@contract("SH-2-02")
@pytest.mark.parametrize("side", ["inputs", "outputs"])
@pytest.mark.parametrize("make", ILL_MADE.values(), ids=ILL_MADE)
def test_placements_of_another_mesh(engine, world, make, side):
    """A tensor whose placements are not one a mesh dimension is refused with an error that speaks of them."""
    good = layout(engine, "R")
    inputs, outputs = ((good, make(engine)), (good,)) if side == "inputs" else ((good, good), (make(engine),))
    function = engine.custom_shard(product, mesh_of(world), outputs, inputs)
    with pytest.raises((ValueError, TypeError), match=r"(?i)placement"):
        function(*operands(engine, world, ("R", "R")))


@contract("SH-2-02")
def test_distributed_tensor_by_name(engine, world):
    """Placements belong to places, so that a distributed tensor by name is refused with its name."""
    left, right = operands(engine, world, ("R", "R"))
    function = sharded(engine, world, Sharded(product, ("R",), ("R",)))
    with pytest.raises((ValueError, TypeError), match="right"):
        function(left, right=right)


@contract("SH-2-02")
def test_uneven_parts_are_refused(engine, world):
    """A dimension that ranks do not divide evenly is refused with both numbers, and not joined to a wrong shape."""
    mesh, odd = mesh_of(world), 2 * world.size + 1
    function = engine.custom_shard(torch.relu, mesh, (layout(engine, "S0"),), (layout(engine, "S0"),))
    with pytest.raises(ValueError, match=rf"\b{world.size}\b.*\b{odd}\b|\b{odd}\b.*\b{world.size}\b"):
        function(on(engine, mesh, numbers(odd, 8), "R"))

"""Functions of parts against the functions on whole tensors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
import torch

from hyper_parallel_tests.domains.shard.derivatives import assert_as_whole, in_tuple, operand, operands
from hyper_parallel_tests.domains.shard.setting import kind_of, layout, numbers, on
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
        device_mesh=world.mesh(tp=world.size),
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
@pytest.mark.parametrize("kinds", [("R", "R"), ("S1", "S0"), ("S0", "S1")], ids="-".join)
def test_inputs_that_lie_otherwise(engine, world, kinds):
    """They are laid out anew, and their gradients lie as they do."""
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

    mesh, rows = world.mesh(tp=world.size), layout(engine, "S0")
    function = engine.custom_shard(keep, mesh, out_placements=(rows, None, None), in_placements=(rows, None, None))
    found, *others = function(on(engine, mesh, operand(0), "S0"), 3, None, flag=True)
    assert not isinstance(seen[0], engine.DTensor)
    assert_equal(seen[0], operand(0).chunk(world.size)[world.rank], what="part")
    assert (seen[1:], others) == ([3, None, True], [3, None])
    assert_equal(found, operand(0), what="result")


@contract("SH-2-02")
def test_plain_tensors(engine, world):
    """Without a distributed tensor the function is called as it is."""
    mesh = world.mesh(tp=world.size)
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

    mesh = world.mesh(tp=world.size)
    function = engine.custom_shard(rectified, mesh, out_placements=layouts(outputs), in_placements=layouts(inputs))
    with pytest.raises((ValueError, TypeError, RuntimeError, AssertionError), match=r"(?i)placement"):
        function(*operands(engine, world, ("S0", "R")))


@contract("SH-2-02")
def test_uneven_parts_are_refused(engine, world):
    """A dimension that ranks do not divide evenly is refused with both numbers, and not joined to a wrong shape."""
    mesh, odd = world.mesh(tp=world.size), 2 * world.size + 1
    function = engine.custom_shard(torch.relu, mesh, (layout(engine, "S0"),), (layout(engine, "S0"),))
    with pytest.raises(ValueError, match=rf"\b{world.size}\b.*\b{odd}\b|\b{odd}\b.*\b{world.size}\b"):
        function(on(engine, mesh, numbers(odd, 8), "R"))

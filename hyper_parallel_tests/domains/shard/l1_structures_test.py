"""Outputs that are more than one tensor."""

from __future__ import annotations

from typing import Any

import pytest

from hyper_parallel_tests.domains.shard.setting import kind_of, layout, mesh_of, numbers, rows
from hyper_parallel_tests.domains.shard.structures import BY_PLACE, STRUCTURES, Named, Record, Returns, parts
from hyper_parallel_tests.harness import World, assert_equal, contract

each_structure = pytest.mark.parametrize("kind", STRUCTURES)


def returning(engine: Any, world: World, make: Any, **plan: Any) -> Any:
    return engine.shard_module(Returns(make), mesh_of(world), engine.ShardingPlan(**plan))


def own_rows(world: World) -> Any:
    return numbers(8, 8).chunk(world.size)[world.rank]


@contract("SH-1-04")
@each_structure
def test_structure_of_a_laid_out_output(engine, world, kind):
    """The tensor is laid out, the type and the other parts stay."""
    whole = layout(engine, "R")
    outputs = [whole, None, None] if kind in BY_PLACE else {"hidden": whole}
    found = returning(engine, world, STRUCTURES[kind], output_plan={"output": outputs})(rows(engine, world))
    assert type(found) is type(STRUCTURES[kind](None, None, None))
    hidden, label, cache = parts(found)
    assert (kind_of(engine, hidden), label, cache) == ("R", "a word", None)
    assert_equal(hidden, numbers(8, 8), what="hidden")


@contract("SH-1-04")
@each_structure
def test_structure_of_a_local_output(engine, world, kind):
    """The tensor is this rank's part, the type and the other parts stay."""
    found = returning(engine, world, STRUCTURES[kind], return_local_tensor=[""])(rows(engine, world))
    assert type(found) is type(STRUCTURES[kind](None, None, None))
    hidden, label, cache = parts(found)
    assert (label, cache) == ("a word", None)
    assert not isinstance(hidden, engine.DTensor)
    assert_equal(hidden, own_rows(world), what="hidden")


@contract("SH-1-04")
def test_structure_in_a_structure(engine, world):
    """Local parts are taken at any depth."""

    def nested(hidden: Any, label: Any, cache: Any) -> Any:
        return {"first": Record(hidden, [hidden, label]), "second": (Named(hidden, label),)}

    found = returning(engine, world, nested, return_local_tensor=[""])(rows(engine, world))
    first, (second,) = found["first"], found["second"]
    assert (type(first), type(first.label), type(second)) == (Record, list, Named)
    for hidden in (first.hidden, first.label[0], second.hidden):
        assert not isinstance(hidden, engine.DTensor)
        assert_equal(hidden, own_rows(world), what="hidden")


@contract("SH-1-04")
def test_local_output_of_a_function(engine, world):
    """A function's result is made local as a module's is."""
    plan = engine.ShardingPlan(return_local_tensor=[""])
    hidden, label, cache = engine.shard_module(Returns(STRUCTURES["tuple"]).forward, mesh_of(world), plan)(
        rows(engine, world)
    )
    assert (label, cache) == ("a word", None)
    assert not isinstance(hidden, engine.DTensor)
    assert_equal(hidden, own_rows(world), what="hidden")


@contract("SH-1-04")
def test_laid_out_and_local(engine, world):
    """An output with both is laid out first."""
    plan = {"output_plan": {"output": [layout(engine, "R"), None, None]}, "return_local_tensor": [""]}
    found = returning(engine, world, STRUCTURES["tuple"], **plan)(rows(engine, world))
    assert not isinstance(found[0], engine.DTensor)
    assert_equal(found[0], numbers(8, 8), what="hidden")


@contract("SH-1-04")
def test_module_keeps_what_it_returned(engine, world):
    """What the module itself holds of its output is left alone."""
    kept: list[dict[str, Any]] = []

    def keeping(hidden: Any, label: Any, cache: Any) -> dict[str, Any]:
        kept.append({"hidden": hidden})
        return kept[-1]

    plan = {"output_plan": {"output": {"hidden": layout(engine, "R")}}}
    found = returning(engine, world, keeping, **plan)(rows(engine, world))
    assert kind_of(engine, found["hidden"]) == "R"
    assert kind_of(engine, kept[0]["hidden"]) == "S0"


@contract("SH-1-04")
@pytest.mark.parametrize("count", [1, 2, 4])
def test_other_number_of_parts(engine, world, count):
    """The error has both numbers."""
    model = returning(
        engine, world, STRUCTURES["tuple"], output_plan={"output": [layout(engine, "R")] + [None] * (count - 1)}
    )
    with pytest.raises(ValueError, match=rf"\b{count}\b.*\b3\b|\b3\b.*\b{count}\b"):
        model(rows(engine, world))


@contract("SH-1-04")
def test_unknown_part(engine, world):
    """The error has the name and the one that it may have meant."""
    model = returning(engine, world, Record, output_plan={"output": {"hiden": layout(engine, "R")}})
    with pytest.raises(ValueError, match="hiden.*hidden"):
        model(rows(engine, world))

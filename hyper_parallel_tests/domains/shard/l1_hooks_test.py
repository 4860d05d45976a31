"""When a plan's hooks run, how often, and what other hooks see."""

from __future__ import annotations

from typing import Any

from torch import nn

from hyper_parallel_tests.domains.shard.setting import (
    Defaults,
    each_form,
    each_signature,
    hook_counts,
    kind_of,
    layout,
    mesh_of,
    numbers,
    rows,
)
from hyper_parallel_tests.harness import World, assert_equal, contract, trace


def planned(engine: Any, world: World, module: Any, **kinds: Any) -> Any:
    """A module or function with these layouts of `left` and `right`, and of its output."""
    output = kinds.pop("output", None)
    plan = engine.ShardingPlan(
        input_plan={"input": {name: layout(engine, kind) for name, kind in kinds.items()}} if kinds else None,
        output_plan={"output": layout(engine, output)} if output else None,
    )
    return engine.shard_module(module, mesh_of(world), plan)


@contract("SH-1-01")
@each_signature
@each_form
def test_each_input_is_laid_out_once(engine, world, make, form):
    """Two divided inputs cost one all-gather each, whichever way they come, and keep their values."""
    probe = planned(engine, world, make(), left="R", right="R")
    left, right = rows(engine, world), rows(engine, world, 1)
    with trace.collectives() as sent:
        form(probe, left, right)
    assert (probe.kinds(engine)["left"], probe.kinds(engine)["right"]) == ("R", "R")
    assert sent.ops() == ["all_gather"] * 2
    assert_equal([probe.given["left"], probe.given["right"]], [numbers(8, 8), numbers(8, 8, seed=1)], what="input")


@contract("SH-1-01")
@each_signature
@each_form
def test_input_hooks_before_and_after(engine, world, make, form):
    """A hook that the module had sees the inputs as they come, one that it gets later as they are laid out."""
    seen: dict[str, list[Any]] = {}

    def note(name: str) -> Any:
        def hook(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            seen[name] = sorted(kind_of(engine, one) for one in (*args, *kwargs.values()))

        return hook

    probe = make()
    probe.register_forward_pre_hook(note("before"), with_kwargs=True)
    planned(engine, world, probe, left="R", right="S1")
    probe.register_forward_pre_hook(note("after"), with_kwargs=True)
    form(probe, rows(engine, world), rows(engine, world, 1))
    assert seen == {"before": ["S0", "S0"], "after": ["R", "S1"]}


@contract("SH-1-01")
def test_output_hooks_before_and_after(engine, world):
    """What a hook of the module makes of the output is laid out, and a later hook sees it laid out."""
    seen: dict[str, Any] = {}

    def double(module: nn.Module, args: tuple[Any, ...], output: Any) -> Any:
        seen["before"] = kind_of(engine, output)
        return output + output

    def note(module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
        seen["after"] = kind_of(engine, output)

    probe = Defaults()
    probe.register_forward_hook(double)
    planned(engine, world, probe, output="R")
    probe.register_forward_hook(note)
    with trace.collectives() as sent:
        found = probe(rows(engine, world))
    assert seen == {"before": "S0", "after": "R"}
    assert sent.ops() == ["all_gather"]
    assert_equal(found, 2 * numbers(8, 8), what="output")


@contract("SH-1-01")
def test_function(engine, world):
    """A function's input and output are laid out once too."""
    seen: list[Any] = []

    def double(left: Any, right: Any = None) -> Any:
        seen.append(kind_of(engine, left))
        return left + left

    sharded = planned(engine, world, double, left="R", output="S1")
    with trace.collectives() as sent:
        found = sharded(rows(engine, world))
    assert (seen, kind_of(engine, found)) == (["R"], "S1")
    assert sent.ops() == ["all_gather"]
    assert_equal(found, 2 * numbers(8, 8), what="output")


class Parent(nn.Module):
    """Hands its input to a part of its own."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, left: Any, right: Any = None) -> Any:
        return self.inner(left, right)


@contract("SH-1-01")
def test_nested_modules(engine, world):
    """Each lays its inputs and outputs out by its own entry, with one hook a side."""
    model = Parent(Defaults())
    plan = engine.ShardingPlan(
        input_plan={"input": {"left": layout(engine, "R")}, "inner.input": {"left": layout(engine, "S1")}},
        output_plan={"output": layout(engine, "R"), "inner.output": layout(engine, "S0")},
    )
    engine.shard_module(model, mesh_of(world), plan)
    assert hook_counts(model) == {"": (1, 1), "inner": (1, 1)}
    found = model(rows(engine, world))
    assert model.inner.kinds(engine)["left"] == "S1"
    assert kind_of(engine, found) == "R"
    assert_equal(found, numbers(8, 8), what="output")


@contract("SH-1-01")
def test_part_with_a_plan_of_its_own(engine, world):
    """A later plan of the whole that names the part again leaves it one hook a side; one that does not leaves it be."""
    model = Parent(Defaults())
    planned(engine, world, model.inner, left="S1", output="R")
    planned(engine, world, model, left="R")
    assert hook_counts(model) == {"": (1, 0), "inner": (1, 1)}
    plan = engine.ShardingPlan(input_plan={"inner.input": {"left": layout(engine, "R")}})
    engine.shard_module(model, mesh_of(world), plan)
    assert hook_counts(model) == {"": (1, 0), "inner": (1, 1)}
    model(rows(engine, world))
    assert model.inner.kinds(engine)["left"] == "R"


@contract("SH-1-01")
def test_module_under_two_names(engine, world):
    """A shared module gets its hooks once, by a wildcard that meets it twice or by both names."""
    for keys in (["*.{}"], ["first.{}", "second.{}"]):
        probe = Defaults()
        model = nn.ModuleDict({"first": probe, "second": probe})
        plan = engine.ShardingPlan(
            input_plan={key.format("input"): {"left": layout(engine, "R")} for key in keys},
            output_plan={key.format("output"): layout(engine, "R") for key in keys},
        )
        engine.shard_module(model, mesh_of(world), plan)
        assert hook_counts(model)["first"] == (1, 1)


@contract("SH-1-02")
@each_form
def test_forward_called_directly(engine, world, form):
    """Without the module's call nothing is laid out, and nothing is sent."""
    probe = planned(engine, world, Defaults(), left="R", right="R", output="R")
    with trace.collectives() as sent:
        found = form(probe.forward, rows(engine, world), rows(engine, world, 1))
    assert probe.kinds(engine) == {"left": "S0", "right": "S0", "scale": 2.0}
    assert kind_of(engine, found) == "S0"
    assert sent.ops() == []
    found = form(probe, rows(engine, world), rows(engine, world, 1))
    assert probe.kinds(engine) == {"left": "R", "right": "R", "scale": 2.0}
    assert kind_of(engine, found) == "R"


@contract("SH-1-02")
def test_part_called_by_a_direct_forward(engine, world):
    """Hooks of a part run where the part is called, though its parent's forward was called directly."""
    model = Parent(Defaults())
    plan = engine.ShardingPlan(
        input_plan={"input": {"left": layout(engine, "R")}, "inner.input": {"left": layout(engine, "S1")}},
        output_plan={"output": layout(engine, "R")},
    )
    engine.shard_module(model, mesh_of(world), plan)
    found = model.forward(rows(engine, world))
    assert model.inner.kinds(engine)["left"] == "S1"
    assert kind_of(engine, found) == "S1"

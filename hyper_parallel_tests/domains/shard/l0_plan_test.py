"""What a plan's names reach, how it is written down, and what it must not ask for."""

from __future__ import annotations

import pickle
from typing import Any

import pytest
from torch import nn

from hyper_parallel_tests.domains.shard.setting import Defaults, hook_counts, layout, numbers, on
from hyper_parallel_tests.harness import contract

RANKS = 2


@pytest.fixture
def mesh(engine):
    with engine.simulated_world(0, RANKS):
        yield engine.init_device_mesh("cpu", (RANKS,), mesh_dim_names=("tp",))


def nest() -> nn.Module:
    """Two blocks of three layers, and a head."""

    def block() -> nn.ModuleDict:
        return nn.ModuleDict({name: nn.Linear(4, 4) for name in ("up", "upper", "down")})

    return nn.ModuleDict({"blocks": nn.ModuleList([block(), block()]), "head": nn.Linear(4, 4)})


def divided(model: nn.Module) -> list[str]:
    """Names of the parameters that are distributed."""
    return [name for name, one in model.named_parameters() if hasattr(one, "placements")]


PARAMETERS = {
    "name": ("blocks.0.up.weight", ["blocks.0.up.weight"]),
    "top": ("head.bias", ["head.bias"]),
    "level": ("blocks.*.down.weight", ["blocks.0.down.weight", "blocks.1.down.weight"]),
    "part_of_a_name": ("blocks.1.up*.bias", ["blocks.1.up.bias", "blocks.1.upper.bias"]),
    "last_level": ("head.*", ["head.weight", "head.bias"]),
}


@contract("SH-0-01")
@pytest.mark.parametrize(("pattern", "expected"), PARAMETERS.values(), ids=PARAMETERS)
def test_parameters_that_a_name_reaches(engine, mesh, pattern, expected):
    """These are divided in place, the others stay plain; a wildcard stands for any part of one level."""
    model = nest()
    assert engine.shard_module(model, mesh, engine.ShardingPlan(plan={pattern: layout(engine, "S0")})) is model
    assert divided(model) == expected
    assert {tuple(one.to_local().shape)[0] for one in model.parameters() if hasattr(one, "placements")} == {4 // RANKS}


MODULES = {
    "model": ("", [""]),
    "name": ("blocks.0.up", ["blocks.0.up"]),
    "level": ("blocks.*.up", ["blocks.0.up", "blocks.1.up"]),
    "first_level": ("*", ["blocks", "head"]),
}


@contract("SH-0-01")
@pytest.mark.parametrize("side", ["input", "output"])
@pytest.mark.parametrize(("pattern", "expected"), MODULES.values(), ids=MODULES)
def test_modules_that_a_name_reaches(engine, mesh, side, pattern, expected):
    """These get a hook on the side that the plan lays out, the others none."""
    model = nest()
    key = f"{pattern}.{side}" if pattern else side
    engine.shard_module(model, mesh, engine.ShardingPlan(**{f"{side}_plan": {key: layout(engine, "R")}}))
    hooked = (1, 0) if side == "input" else (0, 1)
    assert {name: one for name, one in hook_counts(model).items() if one != (0, 0)} == dict.fromkeys(expected, hooked)


@contract("SH-0-01")
@pytest.mark.parametrize("pattern", ["first", "f*"], ids=["name", "part_of_a_name"])
def test_local_results_by_name(engine, mesh, pattern):
    """Modules that return their parts are found by name and wildcard too, and no others."""
    model = nn.ModuleDict({"first": Defaults(), "second": Defaults()})
    engine.shard_module(model, mesh, engine.ShardingPlan(return_local_tensor=[pattern]))
    given = on(engine, mesh, numbers(4, 4), "S0")
    assert tuple(model["first"](given).shape) == (2, 4)
    assert tuple(model["second"](given).shape) == (4, 4)


ALIASES = {
    "one_axis": (("tp", "None"), ("R", "S0")),
    "other_dimension": (("None", "dp"), ("S1", "R")),
    "two_axes": (("dp", "tp"), ("S0", "S1")),
    "whole": (("None", "None"), ("R", "R")),
}


@contract("SH-0-01")
@pytest.mark.parametrize(("names", "kinds"), ALIASES.values(), ids=ALIASES)
def test_axis_names_for_placements(engine, names, kinds):
    """A layout by axis names is that of the placements, for parameters and inputs."""
    with engine.simulated_world(0, 4):
        mesh = engine.init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
        model = nn.ModuleDict({"layer": nn.Linear(4, 4), "probe": Defaults()})
        plan = engine.ShardingPlan(plan={"layer.weight": names}, input_plan={"probe.input": names})
        engine.shard_module(model, mesh, plan)
        model["probe"](engine.distribute_tensor(numbers(4, 4), mesh, [engine.Replicate(), engine.Replicate()]))
        expected = tuple(layout(engine, kind)[0] for kind in kinds)
        assert tuple(model["layer"].weight.placements) == expected
        assert tuple(model["probe"].given["left"].placements) == expected


def full_plan(engine: Any) -> Any:
    """A plan that says something in each part."""
    return engine.ShardingPlan(
        plan={"head.weight": layout(engine, "S0"), "head.bias": ("tp",)},
        input_plan={"head.input": {"input": layout(engine, "S1")}},
        output_plan={"head.output": layout(engine, "R")},
        return_local_tensor=["blocks.0.down"],
    )


@contract("SH-0-01")
def test_pickled_plan_is_the_same(engine, mesh):
    """It is equal, and divides the same parameters and hooks the same modules."""
    plan = full_plan(engine)
    again = pickle.loads(pickle.dumps(plan))
    assert again == plan
    assert again != engine.ShardingPlan(plan=plan.plan)
    first, second = (engine.shard_module(nest(), mesh, one) for one in (plan, again))
    assert divided(second) == divided(first) == ["head.weight", "head.bias"]
    assert hook_counts(second) == hook_counts(first)
    assert plan == full_plan(engine), "a plan stays as it is when it is carried out"


@contract("SH-0-01")
def test_plan_prints_what_it_says(engine):
    """Each name and each layout stands in the text."""
    text = str(full_plan(engine))
    names = ["head.weight", "head.bias", "head.input", "head.output", "blocks.0.down", "tp"]
    for part in [*names, *(repr(layout(engine, kind)[0]) for kind in ("S0", "S1", "R"))]:
        assert part in text


@contract("SH-0-01")
def test_tied_parameters_stay_tied(engine, mesh):
    """A parameter under two names is one afterwards, whichever of them the plan has."""
    for name in ("first.weight", "second.weight", "*.weight"):
        model = nn.ModuleDict({"first": nn.Linear(4, 4, bias=False), "second": nn.Linear(4, 4, bias=False)})
        model["second"].weight = model["first"].weight
        engine.shard_module(model, mesh, engine.ShardingPlan(plan={name: layout(engine, "S0")}))
        assert divided(model) == ["first.weight"]
        assert model["second"].weight is model["first"].weight


@contract("SH-0-01")
def test_two_names_in_one_module(engine, mesh):
    """Two names of one parameter in the same module stay one too."""
    layer = nn.Linear(4, 4, bias=False)
    layer.alias = layer.weight
    engine.shard_module(layer, mesh, engine.ShardingPlan(plan={"weight": layout(engine, "S0")}))
    assert divided(layer) == ["weight"]
    assert layer.alias is layer.weight


@contract("SH-0-01")
def test_frozen_parameters_stay_frozen(engine, mesh):
    """What needs no gradient needs none when it is divided."""
    layer = nn.Linear(4, 4).requires_grad_(False)
    layer.bias.requires_grad_()
    engine.shard_module(layer, mesh, engine.ShardingPlan(plan=dict.fromkeys(("weight", "bias"), layout(engine, "S0"))))
    assert (layer.weight.requires_grad, layer.bias.requires_grad) == (False, True)


@contract("SH-0-01")
def test_world_of_one_rank(engine):
    """A plan is carried out there as anywhere, and the model comes back."""
    with engine.simulated_world(0, 1):
        mesh = engine.init_device_mesh("cpu", (1,), mesh_dim_names=("tp",))
        model = nest()
        assert engine.shard_module(model, mesh, full_plan(engine)) is model
        assert divided(model) == ["head.weight", "head.bias"]


UNKNOWN = {
    "parameter": ("plan", "head.wieght", "head.weight"),
    "parameter_in_a_block": ("plan", "blocks.*.upp.weight", r"blocks\.0\.up.*\.weight"),
    "parameter_of_a_part": ("plan", "weight", r"head\.weight"),
    "input": ("input_plan", "heda.input", "head"),
    "output": ("output_plan", "blocks.0.dwon.output", r"blocks\.0\.down"),
}


@contract("SH-0-01")
@pytest.mark.parametrize(("part", "name", "meant"), UNKNOWN.values(), ids=UNKNOWN)
def test_unknown_name(engine, mesh, part, name, meant):
    """The error has the name and those that it may have meant, and nothing of the plan is carried out."""
    model = nest()
    given = {"plan": {"head.bias": layout(engine, "S0")}, "input_plan": {"head.input": layout(engine, "R")}}
    given[part] = {**given.get(part, {}), name: layout(engine, "R")}
    stem = name.removesuffix(".input").removesuffix(".output").replace("*", "[*]")
    with pytest.raises(ValueError, match=f"{stem}.*{meant}"):
        engine.shard_module(model, mesh, engine.ShardingPlan(**given))
    assert divided(model) == []
    assert set(hook_counts(model).values()) == {(0, 0)}


@contract("SH-0-01")
def test_unknown_module_with_local_results(engine, mesh):
    """A module that is to return its part is looked up too."""
    with pytest.raises(ValueError, match="heda.*head"):
        engine.shard_module(nest(), mesh, engine.ShardingPlan(return_local_tensor=["heda"]))


PARTS = {
    "parameter": lambda engine: {"plan": {"weight": layout(engine, "S0")}},
    "input": lambda engine: {"input_plan": {"head.input": layout(engine, "S0")}},
    "local_result": lambda engine: {"return_local_tensor": ["head"]},
}


@contract("SH-0-01")
@pytest.mark.parametrize("plan", PARTS.values(), ids=PARTS)
def test_function_has_no_parts(engine, mesh, plan):
    """A plan for a function that names a parameter or a module is refused with the name."""
    with pytest.raises(ValueError, match="weight|head"):
        engine.shard_module(nest, mesh, engine.ShardingPlan(**plan(engine)))


@contract("SH-0-01")
@pytest.mark.parametrize("part", ["input_plan", "output_plan"])
def test_key_without_a_side(engine, mesh, part):
    """A key must say that it is an input or an output."""
    with pytest.raises(ValueError, match="head"):
        engine.shard_module(nest(), mesh, engine.ShardingPlan(**{part: {"head": layout(engine, "R")}}))


@contract("SH-0-01")
def test_one_parameter_in_two_layouts(engine, mesh):
    """Two names that lay one parameter out differently are refused, two that agree are not."""
    both = {"head.weight": layout(engine, "S0"), "*.weight": layout(engine, "S1")}
    with pytest.raises(ValueError, match=r"head\.weight"):
        engine.shard_module(nest(), mesh, engine.ShardingPlan(plan=both))
    model = nest()
    engine.shard_module(model, mesh, engine.ShardingPlan(plan=dict.fromkeys(both, layout(engine, "S0"))))
    assert divided(model) == ["head.weight"]


@contract("SH-0-01")
@pytest.mark.parametrize("side", ["input", "output"])
def test_one_module_in_two_layouts(engine, mesh, side):
    """So are two names that lay one module's inputs or output out."""

    def plan(one: str, other: str) -> Any:
        keys = {f"head.{side}": layout(engine, one), f"*.{side}": layout(engine, other)}
        return engine.ShardingPlan(**{f"{side}_plan": keys})

    with pytest.raises(ValueError, match="head"):
        engine.shard_module(nest(), mesh, plan("S0", "S1"))
    model = engine.shard_module(nest(), mesh, plan("S0", "S0"))
    assert hook_counts(model)["head"] == ((1, 0) if side == "input" else (0, 1))


@contract("SH-0-01")
def test_unknown_argument_changes_nothing(engine, mesh):
    """An argument that is not there is noticed before the parameters are divided."""
    model = nest()
    plan = {"plan": {"head.bias": layout(engine, "S0")}, "input_plan": {"head.input": {"inptu": layout(engine, "R")}}}
    with pytest.raises(ValueError, match="inptu.*input"):
        engine.shard_module(model, mesh, engine.ShardingPlan(**plan))
    assert divided(model) == []


MISFITS = {
    "no_placement": lambda engine: (),
    "more_placements": lambda engine: layout(engine, "S0", "S1"),
    "no_such_dimension": lambda engine: (engine.Shard(2),),
    "unknown_axis": lambda engine: ("xp", "None"),
    "fewer_axes": lambda engine: ("tp",),
}


@contract("SH-0-01")
@pytest.mark.parametrize("misfit", MISFITS.values(), ids=MISFITS)
def test_layout_that_does_not_fit(engine, mesh, misfit):
    """A layout of another mesh or tensor is refused with the name, and nothing of the plan is carried out."""
    model = nest()
    plan = engine.ShardingPlan(plan={"head.bias": layout(engine, "S0"), "head.weight": misfit(engine)})
    with pytest.raises(ValueError, match=r"head\.weight"):
        engine.shard_module(model, mesh, plan)
    assert divided(model) == []


@contract("SH-0-01")
def test_neither_module_nor_function(engine, mesh):
    """What cannot be called is refused at once, by its type."""
    with pytest.raises(TypeError, match="Tensor"):
        engine.shard_module(numbers(4, 4), mesh, engine.ShardingPlan(input_plan={"input": layout(engine, "S0")}))


@contract("SH-0-01")
def test_plan_of_another_kind(engine, mesh):
    """A dict is no plan, and the message says what was given."""
    with pytest.raises(TypeError, match="dict"):
        engine.shard_module(nest(), mesh, {"head.weight": layout(engine, "S0")})

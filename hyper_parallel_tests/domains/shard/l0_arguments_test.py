"""Which layout goes to which argument of a call."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from hyper_parallel_tests.domains.shard.setting import (
    Defaults,
    Plain,
    Rest,
    each_form,
    each_signature,
    kind_of,
    layout,
    numbers,
    on,
)
from hyper_parallel_tests.harness import contract

RANKS = 2


@pytest.fixture
def mesh(engine):
    with engine.simulated_world(0, RANKS):
        yield engine.init_device_mesh("cpu", (RANKS,), mesh_dim_names=("tp",))


either_plan = pytest.mark.parametrize("named", [False, True], ids=["by_position", "by_name"])


def layouts(engine: Any, named: bool, **kinds: str | None) -> Any:
    """Layouts of arguments as a sequence or as a dict."""
    found = {name: None if kind is None else layout(engine, kind) for name, kind in kinds.items()}
    return found if named else list(found.values())


def planned(engine: Any, mesh: Any, target: Any, inputs: Any) -> Any:
    return engine.shard_module(target, mesh, engine.ShardingPlan(input_plan={"input": inputs}))


def whole(engine: Any, mesh: Any) -> Any:
    return on(engine, mesh, numbers(4, 4), "R")


@contract("SH-0-02")
@each_signature
@each_form
@either_plan
def test_layouts_go_to_their_arguments(engine, mesh, make, form, named):
    """By position or by name, whichever way the argument comes."""
    probe = planned(engine, mesh, make(), layouts(engine, named, left="S0", right="S1"))
    form(probe, whole(engine, mesh), whole(engine, mesh))
    found = probe.kinds(engine)
    assert (found["left"], found["right"]) == ("S0", "S1")


@contract("SH-0-02")
@each_form
@either_plan
def test_form_of_the_call_is_kept(engine, mesh, form, named):
    """What comes by place goes on by place, and what comes by name by name."""
    seen = []
    probe = planned(engine, mesh, Defaults(), layouts(engine, named, left="S0", right="S1"))

    def note(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        seen.append((len(args), set(kwargs)))

    probe.register_forward_pre_hook(note, with_kwargs=True)
    form(probe, whole(engine, mesh), whole(engine, mesh))
    form(lambda *args, **kwargs: seen.append((len(args), set(kwargs))), None, None)
    assert seen[0] == seen[1]


@contract("SH-0-02")
def test_single_layout_is_the_first_arguments(engine, mesh):
    """A layout that is neither in a sequence nor in a dict goes to the first argument, in place or by name."""
    probe = planned(engine, mesh, Defaults(), layout(engine, "S0"))
    for call in (
        lambda: probe(whole(engine, mesh), whole(engine, mesh)),
        lambda: probe(left=whole(engine, mesh), right=whole(engine, mesh)),
    ):
        call()
        assert probe.kinds(engine) == {"left": "S0", "right": "R", "scale": 2.0}


@contract("SH-0-02")
@either_plan
def test_default_is_not_invented(engine, mesh, named):
    """An argument that is left out has its default, although the plan has a layout for it."""
    probe = planned(engine, mesh, Defaults(), layouts(engine, named, left="S0", right="S1", scale="S0"))
    probe(whole(engine, mesh))
    assert probe.kinds(engine) == {"left": "S0", "right": None, "scale": 2.0}


@contract("SH-0-02")
@each_form
@either_plan
@pytest.mark.parametrize("other", [None, 3, "text", torch.ones(2)], ids=["none", "number", "text", "plain_tensor"])
def test_what_is_not_distributed_passes(engine, mesh, form, named, other):
    """It arrives as the same object, although the plan has a layout in its place."""
    probe = planned(engine, mesh, Defaults(), layouts(engine, named, left="S0", right="S1"))
    form(probe, whole(engine, mesh), other)
    assert probe.given["right"] is other
    assert probe.kinds(engine)["left"] == "S0"


@contract("SH-0-02")
@each_form
@either_plan
def test_argument_without_a_layout_passes(engine, mesh, form, named):
    """None in the place of a layout leaves an argument alone, and does not shift the others."""
    probe = planned(engine, mesh, Defaults(), layouts(engine, named, left=None, right="S1"))
    left = whole(engine, mesh)
    form(probe, left, whole(engine, mesh))
    assert probe.given["left"] is left
    assert probe.kinds(engine)["right"] == "S1"


@contract("SH-0-02")
@either_plan
def test_shorter_plan_than_call(engine, mesh, named):
    """Arguments beyond those that the plan has are left alone."""
    probe = planned(engine, mesh, Defaults(), layouts(engine, named, left="S0"))
    probe(whole(engine, mesh), whole(engine, mesh), scale=3)
    assert probe.kinds(engine) == {"left": "S0", "right": "R", "scale": 3}


@contract("SH-0-02")
def test_rest_by_position(engine, mesh):
    """A sequence goes on over *args, each with its own layout."""
    probe = planned(engine, mesh, Rest(), [layout(engine, kind) for kind in ("S0", "S1", "S0")])
    probe(*(whole(engine, mesh) for _ in range(4)))
    assert probe.kinds(engine) == {"left": "S0", "rest0": "S1", "rest1": "S0", "rest2": "R", "scale": 1.0}


@contract("SH-0-02")
def test_rest_by_name(engine, mesh):
    """The name of *args stands for each of them; names of **kwargs need not be in the signature."""
    inputs = {"rest": layout(engine, "S1"), "scale": layout(engine, "S0"), "mask": layout(engine, "S0")}
    probe = planned(engine, mesh, Rest(), inputs)
    probe(*(whole(engine, mesh) for _ in range(3)), scale=whole(engine, mesh), mask=whole(engine, mesh), bias=None)
    expected = {"left": "R", "rest0": "S1", "rest1": "S1", "scale": "S0", "mask": "S0", "bias": None}
    assert probe.kinds(engine) == expected


@contract("SH-0-02")
@each_form
@either_plan
def test_arguments_of_a_function(engine, mesh, form, named):
    """A plain function's arguments are laid out alike."""

    def both(left: Any, right: Any = None) -> tuple[Any, Any]:
        return left, right

    sharded = planned(engine, mesh, both, layouts(engine, named, left="S0", right="S1"))
    found = form(sharded, whole(engine, mesh), whole(engine, mesh))
    assert [kind_of(engine, one) for one in found] == ["S0", "S1"]
    assert sharded.__name__ == "both"


@contract("SH-0-02")
def test_unknown_argument(engine, mesh):
    """The error has the name and the one that it may have meant, where the plan is given."""
    with pytest.raises(ValueError, match="rihgt.*right"):
        planned(engine, mesh, Defaults(), {"rihgt": layout(engine, "S0")})


@contract("SH-0-02")
def test_more_layouts_than_arguments(engine, mesh):
    """The error has both numbers."""
    with pytest.raises(ValueError, match=r"\b3\b.*\b2\b"):
        planned(engine, mesh, Plain(), [layout(engine, "S0")] * 3)

"""Operators that a user registers: the rule decides, and without one the error names the operator."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from hyper_parallel_tests.domains.dtensor.setting import numbers, on, placed
from hyper_parallel_tests.harness import assert_equal, contract, trace


@torch.library.custom_op("hyper_parallel_tests::row_centre", mutates_args=())
def row_centre(input: Tensor, scale: float) -> Tensor:
    """Each row without its mean, scaled: element by element in dimension 0, but not in dimension 1."""
    return (input - input.mean(1, keepdim=True)) * scale


@row_centre.register_fake
def _(input: Tensor, scale: float) -> Tensor:
    return torch.empty_like(input)


ROW_CENTRE = torch.ops.hyper_parallel_tests.row_centre.default


def rule(engine):
    """Rows may be divided, columns may not."""

    def row_centre_rule(input, scale):
        whole = ([engine.Replicate()], [engine.Replicate(), None])
        rows = ([engine.Shard(0)], [engine.Shard(0), None])
        return [whole, rows] if input.ndim == 2 else [whole]

    return row_centre_rule


@contract("DT-2-05")
@pytest.mark.parametrize("kind", ["R", "S0"])
def test_rule_is_used(engine, world, kind):
    """The operator acts on the parts that its rule allows, sends nothing, and gives the full operator's result."""
    mesh, full = world.mesh(tp=world.size), numbers(8, 4)
    with engine.register_sharding(ROW_CENTRE, rule(engine)), trace.collectives() as sent:
        found = ROW_CENTRE(on(engine, mesh, full, kind), 2.0)
    assert sent.lines() == []
    assert list(found.placements) == placed(engine, kind)
    assert_equal(found.full_tensor(), ROW_CENTRE(full, 2.0), what="result")


@contract("DT-2-05")
def test_what_the_rule_excludes_is_moved_or_refused(engine, world):
    """Divided columns, which the rule excludes, are brought into a placement that it has, or refused by name."""
    mesh, full = world.mesh(tp=world.size), numbers(8, 4)
    with engine.register_sharding(ROW_CENTRE, rule(engine)):
        try:
            found = ROW_CENTRE(on(engine, mesh, full, "S1"), 2.0)
        except (RuntimeError, ValueError) as error:
            assert "row_centre" in str(error)  # noqa: PT017 - either way is right
            return
    assert list(found.placements) in (placed(engine, "R"), placed(engine, "S0"))
    assert_equal(found.full_tensor(), ROW_CENTRE(full, 2.0), what="result")


KNOWN = {
    "relu": (torch.ops.aten.relu.default, torch.relu),
    "cumsum": (torch.ops.aten.cumsum.default, lambda x: torch.cumsum(x, 1)),
}


@contract("DT-2-05")
@pytest.mark.parametrize("name", KNOWN)
def test_rule_replaces_the_engines_own(engine, world, name):
    """A user's rule for an operator that the engine knows is used in place of its own, until it is taken back."""
    mesh, full = world.mesh(tp=world.size), numbers(8, 4)
    op, function = KNOWN[name]

    def always_whole(input, *others):
        return [([engine.Replicate()], [engine.Replicate(), *[None] * len(others)])]

    tensor = on(engine, mesh, full, "S0")
    assert list(function(tensor).placements) == placed(engine, "S0")
    with engine.register_sharding(op, always_whole):
        assert list(function(on(engine, mesh, full, "R")).placements) == placed(engine, "R")
        try:
            found = function(tensor)
        except ValueError as error:
            assert name in str(error)  # noqa: PT017 - a rule without a row for it is refused or the input is moved
        else:
            assert list(found.placements) == placed(engine, "R")
    found = function(tensor)
    assert list(found.placements) == placed(engine, "S0")
    assert_equal(found.full_tensor(), function(full), what="result by the engine's own rule")


@contract("DT-2-05")
def test_operator_without_a_rule(engine, world):
    """Without a rule the operator is refused, and the message names it."""
    with pytest.raises((RuntimeError, NotImplementedError), match="row_centre"):
        ROW_CENTRE(on(engine, world.mesh(tp=world.size), numbers(8, 4), "S0"), 2.0)


@contract("DT-2-05")
def test_rule_is_taken_back(engine, world):
    """After its context a rule governs nothing any more, each time."""
    tensor = on(engine, world.mesh(tp=world.size), numbers(8, 4), "S0")
    for _ in range(2):
        with engine.register_sharding(ROW_CENTRE, rule(engine)):
            ROW_CENTRE(tensor, 2.0)
        with pytest.raises((RuntimeError, NotImplementedError), match="row_centre"):
            ROW_CENTRE(tensor, 2.0)

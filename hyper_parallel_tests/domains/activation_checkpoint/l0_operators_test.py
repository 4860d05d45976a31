"""Policies per operator: which of them run again."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from hyper_parallel_tests.domains.activation_checkpoint.setting import SEED, WIDTH, given
from hyper_parallel_tests.harness import contract
from hyper_parallel_tests.models.seeding import build

ADDMM, MM = torch.ops.aten.addmm.default, torch.ops.aten.mm.default
SIN, EXP = torch.ops.aten.sin.default, torch.ops.aten.exp.default


class Called(TorchDispatchMode):
    """Counts operators that really run, and matrix products without a bias by the shape of their second matrix too.

    What a region takes from its cache does not come here.
    """

    def __init__(self) -> None:
        super().__init__()
        self.counts: Counter[Any] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.counts[func] += 1
        if func is MM:
            self.counts[MM, tuple(args[1].shape)] += 1
        return func(*args, **kwargs or {})


class Layer(nn.Module):
    """Two linear layers, one sine and one exponential: forward operators that, with a bias, no backward calls.

    No weight has the shape of the other one, turned or not.
    """

    def __init__(self, bias: bool) -> None:
        super().__init__()
        self.up = nn.Linear(WIDTH, 2 * WIDTH, bias=bias)
        self.down = nn.Linear(2 * WIDTH, 3 * WIDTH, bias=bias)

    def forward(self, inputs: Tensor) -> Tensor:
        # The tanh at the end needs what stands before it, so that a second run does not stop early.
        return self.down(self.up(inputs).sin().exp()).tanh()


def layer(bias: bool = True) -> Layer:
    return build(lambda: Layer(bias), SEED)


def again(region, counted: Sequence[Any] = (ADDMM, SIN, EXP)) -> dict[Any, int]:
    """How often backward of a region runs each of the operators."""
    output = region(given())
    with Called() as called:
        output.sum().backward()
    return {operator: called.counts[operator] for operator in counted}


def policy_of(chosen: Any, others: Any) -> Any:
    return lambda _, operator, *args, **kwargs: chosen if operator in (ADDMM, EXP) else others


@contract("AC-0-01")
def test_listed_operators_do_not_run_again(engine):
    """Operators of the list are kept, the others run again; without a list all do."""
    plain = layer()
    expected = {ADDMM: 2, SIN: 1, EXP: 1}
    assert again(lambda x: engine.checkpoint(plain, x)) == expected
    for listed in ([ADDMM], [SIN, EXP], [ADDMM, SIN, EXP]):
        found = again(lambda x, listed=listed: engine.checkpoint(plain, x, policy_fn=listed))
        assert found == {operator: 0 if operator in listed else count for operator, count in expected.items()}


@contract("AC-0-01")
@pytest.mark.parametrize("keep", ["MUST_SAVE", "PREFER_SAVE", True])
@pytest.mark.parametrize("drop", ["MUST_RECOMPUTE", "PREFER_RECOMPUTE", False])
def test_answers_of_a_policy(engine, keep, drop):
    """Both ways to save save, both ways to recompute recompute, and booleans are either."""
    kept, dropped = (one if isinstance(one, bool) else getattr(engine.CheckpointPolicy, one) for one in (keep, drop))
    plain = layer()
    found = again(lambda x: engine.checkpoint(plain, x, policy_fn=policy_of(kept, dropped)))
    assert found == {ADDMM: 0, SIN: 1, EXP: 0}


@contract("AC-0-01")
def test_policy_sees_operators_and_their_arguments(engine):
    """A policy that goes by the shape of an argument keeps one product and not the other."""

    def wide_only(_: Any, operator: Any, *args: Any, **kwargs: Any) -> bool:
        return operator is ADDMM and args[2].shape[1] == 2 * WIDTH

    plain = layer()
    assert again(lambda x: engine.checkpoint(plain, x, policy_fn=wide_only)) == {ADDMM: 1, SIN: 1, EXP: 1}


def applied(engine, bias: bool = True, **fields) -> Any:
    """A layer under a policy of operators."""
    layers = nn.ModuleList([layer(bias)])
    engine.apply_ac(layers, engine.ActivationCheckpointConfig(selective_ac_option="op", **fields))
    return layers[0]


@contract("AC-0-01")
@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (["aten.addmm.default"], {ADDMM: 0, SIN: 1, EXP: 1}),
        (["aten.sin.default", "aten.exp.default"], {ADDMM: 2, SIN: 0, EXP: 0}),
        (["aten.mm.default"], {ADDMM: 2, SIN: 1, EXP: 1}),
    ],
    ids=["products", "pointwise", "not_called"],
)
def test_operators_by_name(engine, names, expected):
    """A configuration that names operators keeps them, and one that names others keeps nothing."""
    assert again(applied(engine, op_sac_save_list=names)) == expected


@contract("AC-0-01")
@pytest.mark.parametrize(
    ("parts", "count"),
    [(["up"], 1), (["down"], 1), (["ow"], 1), (["up", "down"], 2)],
    ids=["one", "other", "part", "both"],
)
def test_products_of_named_layers_run_again(engine, parts, count):
    """Products by a weight of a named layer's shape run again, though products are listed."""
    region = applied(
        engine,
        op_sac_save_list=["aten.addmm.default"],
        per_op_sac_force_recompute_mm_shapes_by_fqns=parts,
    )
    assert again(region) == {ADDMM: count, SIN: 1, EXP: 1}


@contract("AC-0-01")
@pytest.mark.parametrize(("part", "counts"), [("up", (1, 0)), ("down", (0, 1))], ids=["one", "other"])
def test_products_without_a_bias_run_again(engine, part, counts):
    """Of linear layers without a bias too, those that are named and no others."""
    region = applied(
        engine,
        bias=False,
        op_sac_save_list=["aten.mm.default"],
        per_op_sac_force_recompute_mm_shapes_by_fqns=[part],
    )
    products = [(MM, (WIDTH, 2 * WIDTH)), (MM, (2 * WIDTH, 3 * WIDTH))]
    assert again(region, products) == dict(zip(products, counts, strict=True))


@contract("AC-0-01")
@pytest.mark.parametrize("part", ["gate", ""], ids=["nothing", "no_linear"])
def test_named_layers_are_there(engine, part):
    """A name that matches no linear layer is refused."""
    layers = nn.ModuleList([nn.Tanh()])
    config = engine.ActivationCheckpointConfig(
        selective_ac_option="op",
        op_sac_save_list=["aten.addmm.default"],
        per_op_sac_force_recompute_mm_shapes_by_fqns=[part],
    )
    with pytest.raises(ValueError, match="must name nn.Linear modules.*nothing" if part else "must name nn.Linear"):
        engine.apply_ac(layers, config)

"""The norm and what clipping makes of gradients, on one card."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from hyper_parallel_tests.domains.clip_grad.reference import NORM_TYPES
from hyper_parallel_tests.harness import assert_close, contract

GRADIENTS = ([[3.0, -4.0], [0.0, 0.0]], [12.0])
# Of 3, -4 and 12: they are chosen so that each is a whole number.
NORMS = {"p1": 19.0, "p2": 13.0, "max": 12.0}

each_norm = pytest.mark.parametrize("norm_type", NORM_TYPES)


def parameters(gradients=GRADIENTS) -> list[nn.Parameter]:
    """Parameters of ones that have these gradients."""
    found = []
    for values in gradients:
        gradient = torch.tensor(values)
        found.append(nn.Parameter(torch.ones_like(gradient)))
        found[-1].grad = gradient
    return found


def gradients_of(those: list[nn.Parameter]) -> list[torch.Tensor]:
    return [one.grad for one in those]


def scaled(factor: float, gradients=GRADIENTS) -> list[torch.Tensor]:
    return [(torch.tensor(values).double() * factor).float() for values in gradients]


@contract("CG-0-01")
@each_norm
def test_norm_is_that_of_one_long_vector(engine, ledger, norm_type):
    """The norm spans all gradients as if they were one vector, and is what it was before clipping."""
    norm = engine.clip_grad_norm_(parameters(), max_norm=1.0, norm_type=NORM_TYPES[norm_type])
    assert type(norm) is torch.Tensor
    assert_close(norm, NORMS[norm_type], ledger["exact"], what="norm")


@contract("CG-0-01")
@each_norm
def test_gradients_above_the_bound_are_scaled_to_it(engine, ledger, norm_type):
    """Half of the norm as the bound halves every gradient, the direction stays."""
    those = parameters()
    norm = NORMS[norm_type]
    engine.clip_grad_norm_(those, max_norm=norm / 2, norm_type=NORM_TYPES[norm_type])
    expected = scaled(norm / 2 / (norm + 1e-6))
    assert_close(gradients_of(those), expected, ledger["clip_factor_fp32"], what="gradients")


@contract("CG-0-01")
@each_norm
@pytest.mark.parametrize("max_norm", [13.5, 1e6])
def test_gradients_within_the_bound_stay(engine, ledger, norm_type, max_norm):
    """A norm below the bound leaves every bit: nothing is ever scaled up."""
    those = parameters([[3.0, -4.0], [5.0]])
    engine.clip_grad_norm_(those, max_norm, norm_type=NORM_TYPES[norm_type])
    assert_close(gradients_of(those), scaled(1, [[3.0, -4.0], [5.0]]), ledger["exact"], what="gradients")


@contract("CG-0-01")
def test_norm_gets_an_epsilon(engine, ledger):
    """1e-6 is added to the norm: as large a norm and as large a bound halve the gradients."""
    those = parameters([[1e-6, 0.0]])
    engine.clip_grad_norm_(those, max_norm=1e-6)
    assert_close(gradients_of(those), scaled(0.5, [[1e-6, 0.0]]), ledger["clip_factor_fp32"], what="gradients")


@contract("CG-0-01")
@each_norm
def test_bound_of_zero_takes_everything(engine, ledger, norm_type):
    """With max_norm 0 every gradient is zero afterwards, and the norm is still told."""
    those = parameters()
    norm = engine.clip_grad_norm_(those, max_norm=0.0, norm_type=NORM_TYPES[norm_type])
    assert_close(norm, NORMS[norm_type], ledger["exact"], what="norm")
    assert_close(gradients_of(those), scaled(0), ledger["exact"], what="gradients", zero_because="max_norm is 0")


@contract("CG-0-01")
@each_norm
@pytest.mark.parametrize("max_norm", [0.0, 1.0])
def test_zero_gradients_stay_zero(engine, ledger, norm_type, max_norm):
    """Gradients of zero have norm zero and stay zero, not NaN, whatever the bound."""
    those = parameters([[0.0, 0.0], [0.0]])
    norm = engine.clip_grad_norm_(those, max_norm, norm_type=NORM_TYPES[norm_type])
    zeros = {"zero_because": "the gradients are zero"}
    assert_close(norm, 0.0, ledger["exact"], what="norm", **zeros)
    assert_close(gradients_of(those), scaled(0, [[0.0, 0.0], [0.0]]), ledger["exact"], what="gradients", **zeros)


@contract("CG-0-01")
def test_nothing_to_clip_has_norm_zero(engine, ledger):
    """Parameters without gradients, and no parameters at all, have norm zero."""
    for those in ([nn.Parameter(torch.ones(2))], []):
        norm = engine.clip_grad_norm_(those, max_norm=1.0)
        assert_close(norm, 0.0, ledger["exact"], what="norm", zero_because="there is no gradient")


@contract("CG-0-01")
@pytest.mark.parametrize("given", ["module", "tensor", "list", "generator"])
def test_parameters_may_be_given_in_any_form(engine, ledger, given):
    """A module, a tensor, a list and a generator all mean their parameters."""
    module = nn.ParameterList(parameters([[3.0, -4.0]] if given == "tensor" else GRADIENTS))
    those = {
        "module": module,
        "tensor": module[0],
        "list": list(module.parameters()),
        "generator": module.parameters(),
    }[given]
    norm = 5.0 if given == "tensor" else NORMS["p2"]
    assert_close(engine.clip_grad_norm_(those, max_norm=0.0), norm, ledger["exact"], what="norm")
    left = [one.grad.abs().sum() for one in module.parameters()]
    assert_close(left, [torch.tensor(0.0)] * len(left), ledger["exact"], zero_because="max_norm is 0")


@contract("CG-0-01")
def test_main_grad_comes_before_grad(engine, ledger):
    """Of a parameter with main_grad that one is counted and scaled, and its grad left alone."""
    those = parameters([[100.0, 100.0], [12.0]])
    those[0].main_grad = torch.tensor([3.0, -4.0])
    norm = engine.clip_grad_norm_(those, max_norm=6.5)
    assert_close(norm, 13.0, ledger["exact"], what="norm")
    expected = scaled(6.5 / (13 + 1e-6), [[3.0, -4.0], [12.0]])
    assert_close([those[0].main_grad, those[1].grad], expected, ledger["clip_factor_fp32"], what="gradients")
    assert_close(those[0].grad, torch.tensor([100.0, 100.0]), ledger["exact"], what="grad beside main_grad")


@contract("CG-0-01")
def test_main_grad_counts_without_grad(engine, ledger):
    """A parameter whose grad is None has its main_grad all the same."""
    those = parameters([[0.0, 0.0]])
    those[0].grad, those[0].main_grad = None, torch.tensor([3.0, -4.0])
    assert_close(engine.clip_grad_norm_(those, max_norm=0.0), 5.0, ledger["exact"], what="norm")
    assert_close(those[0].main_grad.abs().sum(), 0.0, ledger["exact"], zero_because="max_norm is 0")


@contract("CG-0-01")
def test_grad_counts_where_main_grad_is_none(engine, ledger):
    """An attribute main_grad that is None is as none: grad is counted and scaled."""
    those = parameters([[3.0, -4.0]])
    those[0].main_grad = None
    assert_close(engine.clip_grad_norm_(those, max_norm=0.0), 5.0, ledger["exact"], what="norm")
    assert_close(those[0].grad.abs().sum(), 0.0, ledger["exact"], zero_because="max_norm is 0")

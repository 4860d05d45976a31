"""The state dict of chained optimizers: its layout, and what does not fit; and what a chain is."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_optimizer_state_dict

from hyper_parallel_tests.domains.optimizer.chains import chained, steps, tensors, trained_chain
from hyper_parallel_tests.domains.optimizer.network import ADAMW, MATRICES, MUON, network
from hyper_parallel_tests.harness import assert_equal, contract

KEYS = {"adamw": {"step", "exp_avg", "exp_avg_sq"}, "muon": {"momentum_buffer"}}


@pytest.fixture
def trained(engine):
    """A network and its optimizers after two steps."""
    return trained_chain(engine)


@contract("OP-0-01")
def test_layout(trained):
    """State and options are flat and by names, a shared parameter once, and an unused one has no state."""
    model, chain = trained
    found = chain.state_dict()
    state = {key for key in found if key.startswith("state.")}
    expected = set()
    for owner, names in chain.param_names_by_optimizer.items():
        expected |= {f"state.{name}.{key}" for name in names if "unused" not in name for key in KEYS[owner]}
    assert state == expected
    named = {name for names in chain.param_names_by_optimizer.values() for name in names}
    assert {key.removeprefix("param_groups.").rpartition(".")[0] for key in set(found) - state} == named
    assert found["param_groups.up.weight.lr"] == MUON["lr"]
    assert found["param_groups.up.bias.lr"] == ADAMW["lr"]
    assert found["param_groups.up.bias.weight_decay"] == 0.0


@contract("OP-0-01")
def test_layout_is_pytorchs(ledger, trained):
    """It is what PyTorch's flat state dicts of both optimizers are together."""
    model, chain = trained
    options = StateDictOptions(flatten_optimizer_state_dict=True)
    expected = get_optimizer_state_dict(model, list(chain.optimizers_dict.values()), options=options)
    found = chain.state_dict()
    assert set(found) == set(expected)
    assert_equal(tensors(found), tensors(expected), what="state")
    assert {k: v for k, v in found.items() if not isinstance(v, Tensor)} == {
        k: v for k, v in expected.items() if not isinstance(v, Tensor)
    }


@contract("OP-0-01")
def test_before_the_first_step(engine):
    """There is no state yet, and asking for it makes none."""
    model = network()
    chain = chained(engine, model)
    before = copy.deepcopy(model.state_dict())
    assert not tensors(chain.state_dict())
    assert not any(optimizer.state for optimizer in chain.optimizers_dict.values())
    assert_equal(model.state_dict(), before, what="parameters")


def without(state_dict: dict[str, Any], key: str) -> dict[str, Any]:
    return {name: value for name, value in state_dict.items() if name != key}


MISFITS = {
    "state_missing": (lambda one: without(one, "state.norm.weight.exp_avg_sq"), KeyError, "norm.weight.exp_avg_sq"),
    "options_missing": (lambda one: without(one, "param_groups.up.weight.lr"), KeyError, "up.weight.lr"),
    "unknown_parameter": (lambda one: one | {"state.extra.exp_avg": torch.ones(1)}, KeyError, "state.extra.exp_avg"),
    "other_shape": (lambda one: one | {"state.up.weight.momentum_buffer": torch.ones(5, 7)}, ValueError, "up.weight"),
    "options_that_differ": (lambda one: one | {"param_groups.up.weight.lr": 1.0}, ValueError, "lr"),
}


@contract("OP-0-01")
@pytest.mark.parametrize(("change", "error", "named"), MISFITS.values(), ids=MISFITS)
def test_misfit(engine, trained, change, error, named):
    """What does not fit is an error that names it, and nothing is loaded."""
    model, chain = trained
    saved = change(copy.deepcopy(chain.state_dict()))
    steps(model, chain, 2)
    before = copy.deepcopy(tensors(chain.state_dict()))
    with pytest.raises(error, match=named.replace(".", r"\.")):
        chain.load_state_dict(saved)
    assert_equal(tensors(chain.state_dict()), before, what="state")


@contract("OP-0-01")
def test_state_of_another_network(engine, trained):
    """So is the state dict of a network with other parameters; the message has them all."""
    _, chain = trained
    other = nn.ModuleDict({"one": nn.Linear(2, 2), "two": nn.Linear(2, 2)})
    with pytest.raises(KeyError) as refusal:
        chained(engine, other).load_state_dict(chain.state_dict())
    for name in (*MATRICES, "one.weight", "two.bias"):
        assert name in str(refusal.value)


@contract("OP-0-01")
def test_one_parameter_in_two_optimizers(engine):
    """A parameter of two optimizers would be stepped twice: an error that names it."""
    model = network()
    optimizers = {name: engine.AdamW([model.up.weight], **ADAMW) for name in ("first", "second")}
    with pytest.raises(ValueError, match=r"up\.weight.*first.*second"):
        engine.ChainedOptimizer(model, optimizers)


@contract("OP-0-01")
def test_parameter_of_another_model(engine):
    """A parameter that the model does not have has no name: an error that names the optimizer."""
    with pytest.raises(ValueError, match="'adamw'"):
        engine.ChainedOptimizer(network(), {"adamw": engine.AdamW(network().parameters())})


@contract("OP-0-01")
def test_zero_grad(trained):
    """All gradients are cleared, of both."""
    model, chain = trained
    assert model.up.weight.grad is not None
    assert model.up.bias.grad is not None
    chain.zero_grad()
    assert [name for name, one in model.named_parameters() if one.grad is not None] == []


@contract("OP-0-01")
def test_order_of_steps(engine):
    """Optimizers step once each, in their order."""
    model, order = network(), []

    class Noting(torch.optim.SGD):
        def __init__(self, parameter: Tensor, name: str) -> None:
            super().__init__([parameter])
            self.name = name

        def step(self, closure: Any = None) -> None:
            order.append(self.name)

    parts = {"second": model.up.weight, "first": model.down.weight}
    engine.ChainedOptimizer(model, {name: Noting(one, name) for name, one in parts.items()}).step()
    assert order == ["second", "first"]

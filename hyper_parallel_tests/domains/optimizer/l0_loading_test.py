"""State that is loaded into chained optimizers, and the steps that follow."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import pytest
from torch import nn

from hyper_parallel_tests.domains.optimizer.chains import chained, steps, tensors, trained_chain
from hyper_parallel_tests.domains.optimizer.network import network
from hyper_parallel_tests.domains.optimizer.wrapping import each_wrapper
from hyper_parallel_tests.harness import assert_close, assert_differs, assert_equal, contract


def reversed_chain(engine: Any, model: nn.Module) -> Any:
    """Both optimizers in the other order, and their parameters in another one too."""
    made = chained(engine, model).optimizers_dict
    for optimizer in made.values():
        for group in optimizer.param_groups:
            group["params"].reverse()
    return engine.ChainedOptimizer(model, dict(reversed(made.items())))


@contract("OP-0-01")
@pytest.mark.parametrize("other", [chained, reversed_chain])
def test_way_back(engine, ledger, other):
    """A new chain that loads it goes on as the old one does, whatever the order of optimizers and parameters."""
    model, chain = trained_chain(engine)
    twin = copy.deepcopy(model)
    loaded = other(engine, twin)
    loaded.load_state_dict(chain.state_dict())
    assert_equal(tensors(loaded.state_dict()), tensors(chain.state_dict()), what="state")
    steps(model, chain, 2)
    steps(twin, loaded, 2)
    assert_close(twin.state_dict(), model.state_dict(), ledger["exact"], what="parameters")


@contract("OP-0-01")
def test_back_to_an_earlier_step(engine, ledger):
    """A chain that has gone further goes back to what it loads, and takes the same steps once more."""
    model, chain = trained_chain(engine)
    saved = copy.deepcopy((model.state_dict(), chain.state_dict()))
    steps(model, chain, 2, 3)
    expected = copy.deepcopy(model.state_dict())
    model.load_state_dict(saved[0])
    chain.load_state_dict(saved[1])
    assert_equal(tensors(chain.state_dict()), tensors(saved[1]), what="state")
    steps(model, chain, 2, 3)
    assert_close(model.state_dict(), expected, ledger["exact"], what="parameters")


@contract("OP-0-01")
def test_back_to_the_start(engine, ledger):
    """State of before the first step leaves none behind, and the first steps are taken once more."""
    start = network(tied=True)
    model, chain = trained_chain(engine)
    expected = copy.deepcopy(model.state_dict())
    model.load_state_dict(start.state_dict())
    chain.load_state_dict(chained(engine, start).state_dict())
    assert not tensors(chain.state_dict())
    steps(model, chain, 0, 1)
    assert_close(model.state_dict(), expected, ledger["exact"], what="parameters")


OPTIONS: dict[str, Any] = {
    "lr": 0.3,
    "weight_decay": 0.7,
    "betas": (0.3, 0.6),
    "eps": 0.5,
    "momentum": 0.2,
    "nesterov": False,
    "ns_steps": 1,
    "matched_adamw_rms": 0.9,
}


def with_option(chain: Any, option: Mapping[str, Any]) -> Any:
    """The chain, whose groups have another value of an option that they have."""
    for group in chain.param_groups:
        group.update({name: value for name, value in option.items() if name in group})
    return chain


@contract("OP-0-01")
@pytest.mark.parametrize("name", OPTIONS)
def test_option_comes_back(engine, ledger, name):
    """An option that has changed since is loaded too, and the next step is one by it and by no other."""
    model, chain = trained_chain(engine)
    plain, twin = copy.deepcopy(model), copy.deepcopy(model)
    unchanged, loaded = chained(engine, plain), chained(engine, twin)
    unchanged.load_state_dict(chain.state_dict())
    loaded.load_state_dict(with_option(chain, {name: OPTIONS[name]}).state_dict())
    for one in ((model, chain), (plain, unchanged), (twin, loaded)):
        steps(*one, 2)
    assert_close(twin.state_dict(), model.state_dict(), ledger["exact"], what="parameters")
    stepped_by_it = "down.weight" if name in chain.optimizers_dict["muon"].param_groups[0] else "norm.weight"
    assert_differs(plain.get_parameter(stepped_by_it), model.get_parameter(stepped_by_it), ledger["exact"])


@contract("OP-0-01")
def test_group_without_parameters(engine):
    """A group that has no parameters keeps its options: parameters that are added to it later are stepped by them."""
    model = network()
    optimizer = engine.AdamW([{"params": [], "lr": 0.5}, {"params": list(model.parameters())}])
    chain = engine.ChainedOptimizer(model, {"adamw": optimizer})
    before = copy.copy(chain.param_groups[0])
    chain.load_state_dict(chain.state_dict())
    assert chain.param_groups[0] == before


@contract("OP-0-01")
def test_loaded_is_copied(engine):
    """Further steps change nothing in the state dict that was loaded."""
    model, chain = trained_chain(engine)
    saved = copy.deepcopy(chain.state_dict())
    expected = copy.deepcopy(tensors(saved))
    loaded = chained(engine, model)
    loaded.load_state_dict(saved)
    steps(model, loaded, 2)
    assert_equal(tensors(saved), expected, what="the loaded state dict")


@contract("OP-0-01")
@each_wrapper
def test_names_without_wrappers(engine, wrap):
    """Layers that are wrapped, in a model that is so too, have the names that they have without."""
    model, wrapped = network(), network()
    wrapped.up, wrapped.output = wrap(engine, wrapped.up), wrap(engine, wrapped.output)
    bare, chain = chained(engine, model), chained(engine, wrap(engine, wrapped))
    assert chain.param_names_by_optimizer == bare.param_names_by_optimizer
    steps(model, bare, 0)
    chain.load_state_dict(bare.state_dict())
    assert list(chain.state_dict()) == list(bare.state_dict())

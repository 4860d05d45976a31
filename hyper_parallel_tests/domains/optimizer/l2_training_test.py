"""Training of a network over layouts of two ranks, against a single card."""

from __future__ import annotations

import pytest
from torch import Tensor

from hyper_parallel_tests.domains.optimizer.layouts import ON_TWO
from hyper_parallel_tests.domains.optimizer.network import ADAMW, MUON, batch, loss, network
from hyper_parallel_tests.domains.optimizer.training import assert_trains_as_on_one_card, run
from hyper_parallel_tests.harness import assert_bitwise_repeatable, contract

each_layout = pytest.mark.parametrize("layout", ON_TWO.values(), ids=ON_TWO)

MUON_SETTINGS = {
    "plain_momentum": {"nesterov": False},
    "no_momentum": {"momentum": 0.0},
    "no_decay": {"weight_decay": 0.0},
    "two_iterations": {"ns_steps": 2},
}
ADAMW_SETTINGS = {
    "for_loop": {"foreach": False},
    "lists": {"foreach": True},
    "no_decay": {"weight_decay": 0.0},
    "other_averages": {"betas": (0.5, 0.9), "eps": 1e-3},
}


@contract("OP-2-01")
@each_layout
@pytest.mark.parametrize("tied", [False, True], ids=["untied", "tied"])
def test_both(engine, world, ledger, layout, tied):
    """Three steps are a single card's, with uneven and empty shards, frozen and unused parameters."""
    assert_trains_as_on_one_card(engine, world, ledger, layout, tied=tied, muon=MUON, adamw=ADAMW)


@contract("OP-2-01")
@each_layout
def test_adamw_alone(engine, world, ledger, layout):
    """So are those of AdamW for everything, in single precision."""
    assert_trains_as_on_one_card(engine, world, ledger, layout, adamw=ADAMW)


@contract("OP-2-01")
@pytest.mark.parametrize("setting", MUON_SETTINGS.values(), ids=MUON_SETTINGS)
def test_settings_of_muon(engine, world, ledger, setting):
    """So are they with any momentum, decay and number of iterations."""
    assert_trains_as_on_one_card(engine, world, ledger, ON_TWO["fsdp"], muon=MUON | setting, adamw=ADAMW)


@contract("OP-2-01")
@pytest.mark.parametrize("setting", ADAMW_SETTINGS.values(), ids=ADAMW_SETTINGS)
def test_settings_of_adamw(engine, world, ledger, setting):
    """So are they with any averages and decay, parameter by parameter or by lists."""
    assert_trains_as_on_one_card(engine, world, ledger, ON_TWO["fsdp"], adamw=ADAMW | setting)


@contract("OP-2-01")
@each_layout
def test_state_is_divided(engine, world, layout):
    """What belongs to each element is on the rank that has the element, and nowhere else."""
    model = layout.lay(engine, world, network(layout.sizes, device=world.device))
    chain = engine.get_hyper_optimizer(model, muon=MUON, adamw=ADAMW)
    loss(model, layout.rows(world, batch(0).to(world.device))).backward()
    chain.step()
    own = {name: own_shape(one) for name, one in model.named_parameters()}
    found = {key: own_shape(one) for key, one in chain.state_dict().items() if isinstance(one, Tensor) and one.ndim}
    names = {key: key.removeprefix("state.").rpartition(".")[0] for key in found}
    assert set(names.values()) == {name for name, one in model.named_parameters() if one.grad is not None}
    assert found == {key: own[name] for key, name in names.items()}


def own_shape(tensor: Tensor) -> tuple[int, ...]:
    """Of this rank's part."""
    return tuple((tensor.to_local() if hasattr(tensor, "to_local") else tensor).shape)


@contract("OP-2-01")
def test_repeated(engine, world):
    """Two runs in one process are equal bit for bit."""
    assert_bitwise_repeatable(lambda: run(engine, world, ON_TWO["fsdp"], muon=MUON, adamw=ADAMW).steps)

"""Training with parts of it on the host against training on the device, bit by bit."""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from hyper_parallel_tests.domains.optimizer.network import batch, batches, loss, network, train_on_one_card
from hyper_parallel_tests.domains.optimizer.offload import EVERYTHING, SELECTIONS, Offloaded, in_two_parts, stumble
from hyper_parallel_tests.harness import assert_bitwise_repeatable, assert_close, assert_parity, contract, train
from hyper_parallel_tests.models.seeding import Batch

each_selection = pytest.mark.parametrize("what", SELECTIONS.values(), ids=SELECTIONS)


def offloaded(engine: Any, world: Any, what: tuple[str, ...] = EVERYTHING, **options: Any) -> Offloaded:
    """The network with some of its training on the host."""
    tied = options.pop("tied", False)
    return Offloaded(engine, network(tied=tied, device=world.device), what, **options)


def hidden_layers(name: str, _: nn.Parameter) -> bool:
    return name.startswith(("up.", "down."))


@contract("OP-2-02")
@each_selection
@pytest.mark.parametrize("tied", [False, True], ids=["untied", "tied"])
def test_training(engine, world, ledger, what, tied):
    """Whatever waits on the host, three steps of both optimizers are those of the device."""
    run = offloaded(engine, world, what, tied=tied)
    candidate = train(run.model, batches(world), loss, **run.options())
    baseline = train_on_one_card(network(tied=tied, device=world.device), batches(world))
    assert_parity(candidate, baseline, ledger["exact"])


CHOICES: dict[str, dict[str, Any]] = {
    "some_layers": {"chosen": hidden_layers},
    "one_batch": {"batches": 1},
    "many_batches": {"batches": 100},
    "large_state": {"min_numel": 20},
    "one_average": {"state_keys": ("exp_avg",)},
}


@contract("OP-2-02")
@pytest.mark.parametrize("choice", CHOICES.values(), ids=CHOICES)
def test_choices(engine, world, ledger, choice):
    """So are they with some of the parameters, or some of the state, and any number of batches."""
    run = offloaded(engine, world, **choice)
    candidate = train(run.model, batches(world), loss, **run.options())
    assert_parity(candidate, train_on_one_card(network(device=world.device), batches(world)), ledger["exact"])


@contract("OP-2-02")
def test_late_copies(engine, world, ledger):
    """So are they if copies are as late as they may be."""
    with engine.watch_swap_copies(held=True):
        run = offloaded(engine, world)
        candidate = train(run.model, batches(world), loss, **run.options())
    assert_parity(candidate, train_on_one_card(network(device=world.device), batches(world)), ledger["exact"])


def with_evaluation(model: nn.Module, rows: Batch) -> Tensor:
    """An evaluation of other rows, and a forward whose graph is dropped, come first."""
    with torch.no_grad():
        model(rows.inputs.flip(0))
    model(rows.inputs.flip(0))
    return loss(model, rows)


def with_a_backward_for_nothing(model: nn.Module, rows: Batch) -> Tensor:
    """A backward whose gradients are cleared comes first."""
    loss(model, Batch(rows.inputs.flip(0), rows.targets)).backward()
    model.zero_grad()
    return loss(model, rows)


def of_both_graphs(model: nn.Module, rows: Batch) -> Tensor:
    """Two forwards are run backward together."""
    return loss(model, rows) + loss(model, Batch(rows.inputs.flip(0), rows.targets))


PASSES: dict[str, tuple[Callable[[nn.Module, Batch], Tensor], dict[str, Any]]] = {
    "accumulated": (in_two_parts, {"backward": None}),
    "evaluation": (with_evaluation, {}),
    "cleared": (with_a_backward_for_nothing, {}),
    "two_graphs": (of_both_graphs, {}),
}


@contract("OP-2-02")
@pytest.mark.parametrize(("passes", "options"), PASSES.values(), ids=PASSES)
def test_passes(engine, world, ledger, passes, options):
    """So are steps of several backwards, and with other passes between."""
    run = offloaded(engine, world)
    candidate = train(run.model, batches(world), passes, **run.options(), **options)
    baseline = train_on_one_card(network(device=world.device), batches(world), loss=passes, **options)
    assert_parity(candidate, baseline, ledger["exact"])


def clip(model: nn.Module, load: Callable[[], None] = lambda: None) -> Tensor:
    load()
    return torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)


@contract("OP-2-02")
def test_clipped(engine, world, ledger):
    """So are steps whose gradients are brought back to be clipped."""
    run = offloaded(engine, world)
    loading = partial(clip, load=run.handle.load_gradients)
    candidate = train(run.model, batches(world), loss, before_update=loading, **run.options())
    baseline = train_on_one_card(network(device=world.device), batches(world), before_update=clip)
    assert_parity(candidate, baseline, ledger["exact"])


@contract("OP-2-02")
@pytest.mark.parametrize("where", ["forward", "backward"])
def test_after_a_failed_step(engine, world, ledger, where):
    """So are the steps after one that failed."""
    run = offloaded(engine, world)
    stumble(run.model, where)
    run.model.zero_grad()
    candidate = train(run.model, batches(world), loss, **run.options())
    assert_parity(candidate, train_on_one_card(network(device=world.device), batches(world)), ledger["exact"])


@contract("OP-2-02")
def test_state_dicts(engine, world, ledger):
    """State dicts of model and optimizers are those of the device, are copies, and load into one that is offloaded."""
    first, second = offloaded(engine, world), offloaded(engine, world)
    plain = network(device=world.device)
    train(first.model, batches(world), loss, **first.options())
    saved, state = first.model.state_dict(), first.chain.state_dict()
    kept = copy.deepcopy(saved)
    second.model.load_state_dict(saved)
    second.chain.load_state_dict(state)
    plain.load_state_dict(saved)
    on_device = engine.get_hyper_optimizer(plain, muon={}, adamw={})
    on_device.load_state_dict(state)
    tracks = [train(one.model, batches(world), loss, **one.options()) for one in (first, second)]
    expected = train(plain, batches(world), loss, optimizer=lambda _: on_device)
    for track in tracks:
        assert_parity(
            track, expected, ledger["exact"], own_because="one training goes on on the host and on the device"
        )
    assert_close(saved, kept, ledger["exact"], what="the saved parameters")


@contract("OP-2-02")
def test_options_that_change(engine, world, ledger):
    """What a schedule writes into the groups holds in the next step, also after a load."""
    run = offloaded(engine, world, ("state",))
    train(run.model, batches(world), loss, **run.options())
    before = copy.deepcopy(run.model.state_dict())
    for loaded in (False, True):
        if loaded:
            run.chain.load_state_dict(run.chain.state_dict())
        for group in run.chain.param_groups:
            group["lr"] = 0.0
        run.chain.step()
        assert_close(run.model.state_dict(), before, ledger["exact"], what="parameters")


@contract("OP-2-02")
def test_end_of_it(engine, world, ledger):
    """Brought back for good, everything is on the device, and trains on."""
    run = offloaded(engine, world, ("parameters", "gradients"))
    first = train(run.model, batches(world), loss, **run.options())
    run.handle.remove()
    assert_close(dict(run.model.named_parameters()), first.steps[-1].params, ledger["exact"], what="parameters")
    second = train(run.model, batches(world), loss, optimizer=lambda _: run.chain)
    baseline = train_on_one_card(network(device=world.device), batches(world) * 2)
    assert_close(second.steps[-1].params, baseline.steps[-1].params, ledger["exact"], what="parameters")


@contract("OP-2-02")
def test_end_brings_gradients_back(engine, world, ledger):
    """Gradients that are on the host at the end are on the device then."""
    run, plain = offloaded(engine, world, ("parameters", "gradients")), network(device=world.device)
    for model in (run.model, plain):
        loss(model, batch(0).to(world.device)).backward()
    run.handle.remove()
    expected = {name: one.grad for name, one in plain.named_parameters() if one.grad is not None}
    found = {name: one.grad for name, one in run.model.named_parameters() if one.grad is not None}
    assert_close(found, expected, ledger["exact"], what="gradients")


@contract("OP-2-02")
def test_repeated(engine, world):
    """Two runs in one process are equal bit for bit."""

    def once() -> Any:
        run = offloaded(engine, world)
        return train(run.model, batches(world), loss, **run.options()).steps

    assert_bitwise_repeatable(once)

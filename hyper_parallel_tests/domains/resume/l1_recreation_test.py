"""State finds its parameter by name: parameters made anew, registered in another order, frozen, or not yet updated."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from hyper_parallel_tests.domains.resume.networks import divided, loss_of, network, rows
from hyper_parallel_tests.domains.resume.observation import (
    gradients,
    optimizer_setting,
    optimizer_values,
    parameters,
)
from hyper_parallel_tests.domains.resume.runs import PLAIN, begun, made
from hyper_parallel_tests.harness import assert_equal, contract

layouts = pytest.mark.parametrize("layout", ["one", "fsdp", "tp"])


def turned_round(model: nn.Module) -> nn.Module:
    """All modules and parameters in the opposite order, parameters as new objects; the names stay."""
    for module in model.modules():
        for held in (module._modules, module._parameters):
            items = list(held.items())[::-1]
            held.clear()
            held.update(items)
        for name, parameter in module.named_parameters(recurse=False):
            setattr(module, name, nn.Parameter(parameter.detach().clone()))
    return model


def trainer_of(world: Any, layout: str, seed: int, *, turned: bool = False, optimizer: Any = None) -> Any:
    """A trainer of a plain plan whose model may be turned round before it is divided."""
    engine = world.engine
    whole = network(seed)
    model, mesh = divided(world, turned_round(whole) if turned else whole, layout)
    degrees = [] if mesh is None else [f"--parallel.{layout}={world.size}"]
    settings = (*PLAIN.settings, "--parallel.fsdp=1", f"--parallel.dp={world.size}", *degrees, "--parallel.dp=-1")
    config = engine.parse_training_config("{}", settings)
    made_of = optimizer(model) if optimizer is not None else None
    return engine.BaseTrainer(config, model, loss_of, rows(), mesh=mesh, optimizer=made_of)


def two_groups(model: nn.Module) -> torch.optim.Optimizer:
    """SGD with momentum, a group a layer."""
    groups = [{"params": list(layer.parameters())} for layer in model.layers.values()]
    return torch.optim.SGD(groups, lr=0.1, momentum=0.9)


@contract("RS-1-01")
@layouts
def test_another_order(engine, world, artifacts, layout):
    """Momenta are those of their parameters, though all were made anew and registered in the opposite order."""
    trainer = trainer_of(world, layout, 0)
    trainer.train(steps=2)
    trainer.save_checkpoint(artifacts / "checkpoint")
    fresh = trainer_of(world, layout, 5, turned=True)
    fresh.load_checkpoint(artifacts / "checkpoint")
    for seen in (parameters, optimizer_values, optimizer_setting("lr")):
        assert_equal(dict(sorted(seen(fresh).items())), dict(sorted(seen(trainer).items())))


@contract("RS-1-01")
@layouts
def test_settings_of_groups(engine, world, artifacts, layout):
    """Each parameter has the settings that its group had, which its user has changed, in groups of another order."""
    trainer = trainer_of(world, layout, 0, optimizer=two_groups)
    first, second = trainer.optimizer.param_groups
    first["lr"], first["momentum"], second["weight_decay"] = 0.05, 0.8, 0.25
    trainer.train(steps=1)
    trainer.save_checkpoint(artifacts / "checkpoint")
    fresh = trainer_of(world, layout, 5, turned=True, optimizer=two_groups)
    fresh.load_checkpoint(artifacts / "checkpoint")
    for key in ("lr", "momentum", "weight_decay"):
        seen = optimizer_setting(key)
        assert_equal(dict(sorted(seen(fresh).items())), dict(sorted(seen(trainer).items())), what=key)


@contract("RS-1-01")
def test_updates_go_on(engine, world, artifacts):
    """The restored optimizer updates the fresh parameters, and not copies of them: both trainers go the same way."""
    trainer = trainer_of(world, "fsdp", 0)
    trainer.train(steps=2)
    trainer.save_checkpoint(artifacts / "checkpoint")
    fresh = trainer_of(world, "fsdp", 5, turned=True)
    fresh.load_checkpoint(artifacts / "checkpoint")
    for one in (trainer, fresh):
        one.train(steps=2)
    assert_equal(dict(sorted(parameters(fresh).items())), dict(sorted(parameters(trainer).items())))
    assert_equal(dict(sorted(optimizer_values(fresh).items())), dict(sorted(optimizer_values(trainer).items())))


@contract("RS-1-01")
@pytest.mark.parametrize("micro_batches", [0, 1], ids=["nothing_done", "window_open"])
def test_before_the_first_step(engine, world, artifacts, micro_batches):
    """Before its first step an optimizer has no values: none are saved, and a restored one has none left over."""
    trainer = begun(world, PLAIN, "fsdp", micro_batches=micro_batches)
    trainer.save_checkpoint(artifacts / "checkpoint")
    assert not optimizer_values(trainer), "the save has made the optimizer step"
    fresh = begun(world, PLAIN, "fsdp", steps=1)
    fresh.load_checkpoint(artifacts / "checkpoint")
    assert not optimizer_values(fresh)
    assert_equal(gradients(fresh), gradients(trainer), what="gradients")
    for one in (trainer, fresh):
        one.train(steps=2)
    assert_equal(parameters(fresh), parameters(trainer))


@contract("RS-1-01")
def test_frozen_meanwhile(engine, world, artifacts):
    """A parameter that was frozen during the run, with momentum from before, is frozen behind the restore."""
    name = "layers.0.down.bias"
    trainer = trainer_of(world, "one", 0)
    trainer.train(steps=1)
    trainer.model.get_parameter(name).requires_grad_(False)
    trainer.train(steps=1)
    trainer.save_checkpoint(artifacts / "checkpoint")
    fresh = trainer_of(world, "one", 5)
    fresh.load_checkpoint(artifacts / "checkpoint")
    assert not fresh.model.get_parameter(name).requires_grad
    for one in (trainer, fresh):
        one.train(steps=2)
    assert_equal(parameters(fresh), parameters(trainer))
    assert_equal(optimizer_values(fresh), optimizer_values(trainer))


@contract("RS-1-01")
def test_restored_in_the_middle(engine, world, artifacts):
    """A trainer that is restored in the middle of a window of its own has nothing of it left."""
    trainer = begun(world, PLAIN, "fsdp", steps=1)
    trainer.save_checkpoint(artifacts / "checkpoint")
    other = begun(world, PLAIN, "fsdp", steps=2, micro_batches=1)
    other.load_checkpoint(artifacts / "checkpoint")
    assert not gradients(other)
    for one in (trainer, other):
        one.train(steps=2)
    assert_equal(parameters(other), parameters(trainer))


@contract("RS-1-01")
def test_saved_values_are_those_of_the_save(engine, world, artifacts):
    """What is trained behind the save is not in the checkpoint."""
    trainer = begun(world, PLAIN, "fsdp", steps=1)
    expected = parameters(trainer)
    trainer.save_checkpoint(artifacts / "checkpoint")
    trainer.train(steps=1)
    fresh = made(world, PLAIN, "fsdp", stranger=True)
    fresh.load_checkpoint(artifacts / "checkpoint")
    assert_equal(parameters(fresh), expected)

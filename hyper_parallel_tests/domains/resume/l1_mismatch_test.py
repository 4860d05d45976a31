"""Checkpoints of another model, optimizer or data are errors with what does not fit; wrappers are no other model."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper

from hyper_parallel_tests.domains.resume.networks import Network, Rows, loss_of, network
from hyper_parallel_tests.domains.resume.observation import frozen, gradients, optimizer_values, parameters
from hyper_parallel_tests.domains.resume.runs import PLAIN
from hyper_parallel_tests.harness import assert_equal, contract

FROZEN = "layers.1.up.bias"


def momentum(*groups: Any) -> torch.optim.Optimizer:
    """SGD of groups, whose settings they have themselves."""
    return torch.optim.SGD(list(groups), lr=0.1, momentum=0.9)


def of_one_group(model: nn.Module) -> torch.optim.Optimizer:
    return momentum({"params": list(model.parameters())})


def of_two_groups(model: nn.Module) -> torch.optim.Optimizer:
    first, second = (list(layer.parameters()) for layer in model.layers.values())
    return momentum({"params": first, "lr": 0.05}, {"params": second})


def of_the_first_layer(model: nn.Module) -> torch.optim.Optimizer:
    return momentum({"params": list(model.layers["0"].parameters())})


def trainer_of(world: Any, model: Network, make: Any = of_two_groups, rows: int = 20) -> Any:
    """A trainer on which all ranks have the same model, and rows of their own."""
    settings = (*PLAIN.settings, "--parallel.fsdp=1", "--parallel.dp=-1")
    config = world.engine.parse_training_config("{}", settings)
    model = model.to(world.device)
    return world.engine.BaseTrainer(config, model, loss_of, Rows(rows, noisy=False), optimizer=make(model))


def saved(world: Any, folder: Any) -> Any:
    """A trainer with two groups, behind a step and in an open window, and its checkpoint."""
    trainer = trainer_of(world, network(0))
    trainer.train(steps=1)
    trainer.train(micro_batches=1)
    trainer.save_checkpoint(folder)
    return trainer


@contract("RS-1-01")
@pytest.mark.parametrize(
    ("layers", "make", "rows", "words"),
    [
        (2, of_one_group, 20, "unlike settings"),
        (2, of_the_first_layer, 20, r"optimizer state of layers\.1\."),
        (3, of_one_group, 20, r"layers\.2\."),
        (2, of_two_groups, 21, "20 rows, and there are 21"),
    ],
    ids=["one_group", "part_of_the_optimizer", "more_layers", "other_data"],
)
def test_another_run(engine, world, artifacts, layers, make, rows, words):
    """A checkpoint of which something does not fit is an error that has it."""
    saved(world, artifacts / "checkpoint")
    fresh = trainer_of(world, network(5, layers=range(layers)), make, rows)
    with pytest.raises((ValueError, engine.CheckpointException), match=words):
        fresh.load_checkpoint(artifacts / "checkpoint")


def wrapped(model: Network) -> Network:
    """With recomputation around each layer, which has names of its own in between."""
    for name, layer in model.layers.items():
        model.layers[name] = checkpoint_wrapper(layer)
    return model


@contract("RS-1-01")
@pytest.mark.parametrize("before", [True, False], ids=["left_off", "put_on"])
def test_wrapped(engine, world, artifacts, before):
    """A run goes on with layers that are wrapped, or are no more: under the names that they have without."""
    first, second = (wrapped, lambda model: model) if before else (lambda model: model, wrapped)
    trainer = trainer_of(world, first(network(0)))
    trainer.train(steps=1)
    plain_names(trainer)[FROZEN].requires_grad_(False)
    trainer.train(micro_batches=1)
    trainer.save_checkpoint(artifacts / "checkpoint")
    fresh = trainer_of(world, second(network(5)))
    try:
        fresh.load_checkpoint(artifacts / "checkpoint")
    except engine.CheckpointException as error:
        pytest.fail(f"it is refused: {error}")
    for seen in (parameters, optimizer_values, gradients, frozen):
        assert_equal(plainly(seen(fresh)), plainly(seen(trainer)), what=seen.__name__)


def plainly(values: dict[str, Any]) -> dict[str, Any]:
    return {name.replace("_checkpoint_wrapped_module.", ""): value for name, value in values.items()}


def plain_names(trainer: Any) -> dict[str, nn.Parameter]:
    return plainly(dict(trainer.model.named_parameters()))

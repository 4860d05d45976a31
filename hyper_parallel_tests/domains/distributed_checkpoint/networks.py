"""The small networks that are saved, and one step of their training."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from hyper_parallel_tests.models.mlp import mlp, mlp_batch, mlp_loss

# Not a multiple of 2 or 4, so that the ranks' parts differ in size.
WIDTH = 7


class Tied(nn.Module):
    """Two linear layers of one weight, and a buffer that forward moves."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self.layers = mlp(WIDTH, 2, seed=seed).layers
        self.layers[1].weight = self.layers[0].weight
        self.register_buffer("calls", torch.zeros((), dtype=torch.int64))

    def forward(self, inputs: Tensor) -> Tensor:
        self.calls += 1
        return self.layers[1](torch.tanh(self.layers[0](inputs)))


def network(seed: int) -> nn.Module:
    """A perceptron of two layers, with the weights of a seed."""
    return mlp(WIDTH, 2, seed=seed)


def plain(engine: Any, world: Any, model: nn.Module) -> nn.Module:
    """The model as it is, the same on every rank."""
    return model


def sharded(engine: Any, world: Any, model: nn.Module) -> nn.Module:
    """The model divided over all ranks."""
    return engine.fully_shard(model, mesh=world.mesh(dp=world.size))


WRAPS: dict[str, Callable[..., nn.Module]] = {"plain": plain, "sharded": sharded}


def step(world: Any, model: nn.Module, optimizer: torch.optim.Optimizer, seed: int) -> Tensor:
    """One training step on a batch that all ranks share; gives the loss."""
    loss = mlp_loss(model, mlp_batch(seed, rows=4, width=WIDTH).to(world.device))
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    return loss.detach()


def trained(
    engine: Any, world: Any, make: Callable[[int], nn.Module], wrap: Callable[..., nn.Module], *, seed: int, steps: int
) -> tuple[nn.Module, torch.optim.Optimizer]:
    """A model with the weights of a seed and its AdamW, after so many steps."""
    model = wrap(engine, world, make(seed).to(world.device))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1, weight_decay=0.1)
    for index in range(steps):
        step(world, model, optimizer, seed=100 * seed + index)
    return model, optimizer


def states(engine: Any, model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """The state dict of a model and its optimizer, by the names of the parameters."""
    return {
        "model": engine.get_model_state_dict(model),
        "optimizer": engine.get_optim_state_dict(model, optimizer),
    }


def restore(engine: Any, folder: Any, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Loads a checkpoint of `states` into a model and its optimizer."""
    state = states(engine, model, optimizer)
    engine.load(state, checkpoint_id=folder)
    engine.set_optim_state_dict(model, optimizer, state["optimizer"])
    engine.set_model_state_dict(model, state["model"])


def tensors(model: nn.Module) -> dict[str, Tensor]:
    """Copies of the parameters and buffers by name, each name of a shared one."""
    named = [*model.named_parameters(remove_duplicate=False), *model.named_buffers()]
    return {name: one.detach().clone() for name, one in named}

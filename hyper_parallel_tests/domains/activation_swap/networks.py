"""Layers one after the other, each a group, and how a user has them swapped."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from unittest import mock

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from hyper_parallel_tests.models.mlp import mlp_batch
from hyper_parallel_tests.models.seeding import Batch, build

WIDTH, INNER, ROWS, SEED = 8, 24, 4, 1234
MOVES = ("launch_offload", "wait_offload", "launch_load", "wait_load")


class Layer(nn.Module):
    """A feed-forward, (rows, WIDTH) in and out, of which three tensors are saved: input, and GELU's input and output.

    With a last function its output is saved too, and the next layer saves the same.
    """

    def __init__(self, last: str = "none", dropout: float = 0.0) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(WIDTH, INNER), nn.Linear(INNER, WIDTH)
        self.last = torch.tanh if last == "tanh" else nn.Identity()
        self.dropout = nn.Dropout(dropout) if dropout else nn.Identity()
        self.residual = last == "residual"

    def forward(self, hidden: Tensor) -> Tensor:
        inner = self.dropout(F.gelu(self.up(hidden)))
        output = self.last(self.down(inner))
        return hidden + output if self.residual else output


class Chain(nn.Module):
    """Layers one after the other."""

    def __init__(self, depth: int, last: str, dropout: float) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Layer(last, dropout) for _ in range(depth))

    def forward(self, hidden: Tensor) -> Tensor:
        for layer in self.layers:
            hidden = layer(hidden)
        return hidden


def chain(device: torch.device | str, *, depth: int = 4, last: str = "none", dropout: float = 0.0) -> Chain:
    """The same weights each time."""
    return build(lambda: Chain(depth, last, dropout), SEED).to(device)


def swap_layers(
    engine: Any, layers: nn.ModuleList, only: Collection[int] | None = None, policy_fn: Any = None
) -> list[nn.Module]:
    """Has layers swapped in place, all or only some, and all of them ordered as groups. Gives the layers then."""
    for number, (name, layer) in enumerate(list(layers.named_children())):
        if only is None or number in only:
            layers.register_module(name, engine.swap_wrapper(layer, policy_fn))
    return order(engine, list(layers.children()))


def order(engine: Any, layers: Sequence[nn.Module]) -> list[nn.Module]:
    """Orders layers as groups."""
    for first, second in zip(layers, layers[1:], strict=False):
        engine.SwapManager().set_forward_prefetch_layer(first, second)
    return list(layers)


def batches(world: Any, rows: Sequence[int]) -> list[Batch]:
    """This rank's rows of each step, which are so many."""
    whole = [mlp_batch(seed, each * world.size, WIDTH) for seed, each in enumerate(rows)]
    return [one.part(world.rank, world.size).to(world.device) for one in whole]


def on_all_ranks(model: nn.Module) -> nn.Module:
    """The model under data parallelism, with averaged gradients; alone on a single card."""
    return DistributedDataParallel(model) if torch.distributed.get_world_size() > 1 else model


@contextmanager
def steps_of(manager: Any, layers: Sequence[nn.Module]) -> Iterator[list[str]]:
    """Context that gives what happens in it: each layer's forward and backward as they begin, and the manager's calls.

    Layers must have been ordered before, so that these marks come after what the engine does at the same time.
    """
    seen: list[str] = []
    names: dict[str, int] = {}
    handles = []
    for number, layer in enumerate(layers):

        def forward(_: Any, __: Any, number: int = number) -> None:
            names[manager.get_current_group_name()] = number
            seen.append(f"forward {number}")

        def backward(_: Any, __: Any, number: int = number) -> None:
            seen.append(f"backward {number}")

        handles += [layer.register_forward_pre_hook(forward), layer.register_full_backward_pre_hook(backward)]

    def noting(move: str, original: Any) -> Any:
        def call(self: Any, group_name: str, *args: Any) -> Any:
            seen.append(f"{move} {names.get(group_name, group_name)}")
            return original(self, group_name, *args)

        return call

    kind = type(manager)
    with mock.patch.multiple(kind, **{move: noting(move, getattr(kind, move)) for move in MOVES}):
        yield seen
    for handle in handles:
        handle.remove()


def in_order(layers: int) -> list[str]:
    """What such a context is to give for one step of so many layers."""
    steps = []
    for layer in range(layers):
        steps.append(f"forward {layer}")
        steps += [f"launch_offload {layer}"] if layer + 1 < layers else []
        steps += [f"wait_offload {layer - 1}"] if layer else []
    for layer in reversed(range(layers)):
        steps += [f"launch_load {layer - 1}"] if layer else []
        steps += [f"wait_load {layer}"] if layer + 1 < layers else []
        steps.append(f"backward {layer}")
    return steps

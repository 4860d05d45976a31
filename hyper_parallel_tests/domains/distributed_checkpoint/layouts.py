"""One network with its optimizer, laid over ranks in every way that checkpoints are to be carried between."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from hyper_parallel_tests.harness import assert_equal, jobs
from hyper_parallel_tests.models.seeding import generator

__all__ = ["LAYOUTS", "Layout", "Saves", "carried"]

# Even on every mesh, but for the last layer, which is uneven on each.
SHAPES = [(8, 12), (12, 8), (8, 12), (12, 8), (5, 7)]


class Stack(nn.Module):
    """Layers under the numbers that they have in the whole network, all of them or those of one stage."""

    def __init__(self, numbers: range) -> None:
        super().__init__()
        self.layers = nn.ModuleDict({str(number): nn.Linear(*SHAPES[number]) for number in numbers})


WHOLE = range(len(SHAPES))


def replicated(engine: Any, world: Any) -> nn.Module:
    return Stack(WHOLE).to(world.device)


def fsdp(engine: Any, world: Any) -> nn.Module:
    return _sharded(engine, replicated(engine, world), world.mesh(dp=world.size))


def tp(engine: Any, world: Any) -> nn.Module:
    return _divided(engine, replicated(engine, world), world.mesh(tp=world.size), uneven=True)


def fsdp_tp(engine: Any, world: Any) -> nn.Module:
    mesh = world.mesh(dp=world.size // 2, tp=2)
    model = _divided(engine, replicated(engine, world), mesh["tp"], uneven=False)
    return _sharded(engine, model, mesh["dp"])


def pp(engine: Any, world: Any) -> nn.Module:
    """The stage of this rank; the last one has the remainder."""
    first, each = world.rank * (len(SHAPES) // world.size), len(SHAPES) // world.size
    end = len(SHAPES) if world.rank == world.size - 1 else first + each
    return Stack(range(first, end)).to(world.device)


def _sharded(engine: Any, model: nn.Module, mesh: Any) -> nn.Module:
    for layer in model.layers.values():
        engine.fully_shard(layer, mesh=mesh)
    return engine.fully_shard(model, mesh=mesh)


def _divided(engine: Any, model: nn.Module, mesh: Any, *, uneven: bool) -> nn.Module:
    numbers = WHOLE if uneven else WHOLE[:-1]
    plan = {f"layers.{n}": engine.RowwiseParallel() if n % 2 else engine.ColwiseParallel() for n in numbers}
    return engine.parallelize_module(model, mesh, plan)


class Layout(NamedTuple):
    """How the network lies.

    Attributes:
        cards: ranks of a launch.
        build: the network of a rank, of any values.
    """

    cards: int
    build: Callable[[Any, Any], nn.Module]


LAYOUTS = {
    "single": Layout(1, replicated),
    "replicated_2": Layout(2, replicated),
    "fsdp_2": Layout(2, fsdp),
    "tp_2": Layout(2, tp),
    "pp_2": Layout(2, pp),
    "fsdp_4": Layout(4, fsdp),
    "tp_4": Layout(4, tp),
    "fsdp_tp_4": Layout(4, fsdp_tp),
    "pp_4": Layout(4, pp),
}


class State:
    """What is saved of a network and its AdamW: by names of the whole network, whatever ranks have what."""

    def __init__(self, world: Any, layout: str) -> None:
        engine = self._engine = world.engine
        self.model = LAYOUTS[layout].build(engine, world)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.5)
        self.dict = self._now()

    def _now(self) -> dict[str, Any]:
        optimizer = self._engine.get_optim_state_dict(self.model, self.optimizer)
        [group] = optimizer["param_groups"]
        options = {name: {"lr": group["lr"], "betas": list(group["betas"])} for name in group["params"]}
        model = self._engine.get_model_state_dict(self.model)
        return {"model": model, "optimizer": optimizer["state"], "options": options}

    def fill(self, seed: int) -> None:
        """Gives all of it the values of a seed, and the options those of it."""
        for name, tensor in self.tensors():
            whole = _value(name, tensor.shape, seed)
            if hasattr(tensor, "placements"):
                whole = self._engine.distribute_tensor(whole, tensor.device_mesh, tensor.placements)
            with torch.no_grad():
                tensor.copy_(whole)
        for one in self.dict["options"].values():
            one["lr"] = float(seed)

    def put_back(self) -> None:
        """Gives network and optimizer what a load has put into the dict."""
        [rate] = {one["lr"] for one in self.dict["options"].values()}
        state = self._engine.get_optim_state_dict(self.model, self.optimizer)
        state["state"] = self.dict["optimizer"]
        state["param_groups"][0]["lr"] = rate
        self._engine.set_model_state_dict(self.model, self.dict["model"])
        self._engine.set_optim_state_dict(self.model, self.optimizer, state)
        self.dict = self._now()

    def tensors(self) -> Iterator[tuple[str, Tensor]]:
        return _tensors(self.dict)


def _tensors(state: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Tensor]]:
    for name, value in state.items():
        if isinstance(value, Tensor):
            yield prefix + name, value
        elif isinstance(value, Mapping):
            yield from _tensors(value, f"{prefix}{name}.")


def _value(name: str, shape: torch.Size, seed: int) -> Tensor:
    return torch.randn(shape, generator=generator(seed, name)).abs() + 1


SAVED, OTHER = 1, 2


def save(world: Any, folder: Path, layout: str) -> list[str]:
    """One launch: saves the values of a seed; gives the names of the tensors that this rank has."""
    state = State(world, layout)
    state.fill(SAVED)
    world.engine.save(state.dict, checkpoint_id=folder)
    return [name for name, _ in state.tensors()]


def load(world: Any, folder: Path, layout: str) -> list[str]:
    """Another launch: loads them in place of others, and holds network and optimizer to what was saved."""
    state = State(world, layout)
    state.fill(OTHER)
    world.engine.load(state.dict, checkpoint_id=folder)
    state.put_back()
    found = dict(state.tensors())
    expected = {name: _value(name, tensor.shape, SAVED).to(world.device) for name, tensor in found.items()}
    assert_equal(found, expected, what=f"what {layout} has loaded")
    assert {one["lr"] for one in state.dict["options"].values()} == {float(SAVED)}
    return list(found)


class Saves:
    """Checkpoints of layouts, each saved by a launch of its own when it is first asked for."""

    def __init__(self, root: Path) -> None:
        self._root, self._names = root, {}

    def folder(self, world: Any, layout: str) -> Path:
        folder = self._root / layout
        if layout not in self._names:
            names = jobs.run(world, save, folder, layout, cards=LAYOUTS[layout].cards)
            self._names[layout] = {name for part in names for name in part}
        return folder

    def names(self, layout: str) -> set[str]:
        """Of all tensors that some rank has saved."""
        return self._names[layout]


def carried(world: Any, saves: Saves, saved: str, loaded: str) -> None:
    """Saves in one launch and layout, loads in another, and asserts that all of it is there, bit for bit."""
    folder = saves.folder(world, saved)
    names = jobs.run(world, load, folder, loaded, cards=LAYOUTS[loaded].cards)
    found = {name for part in names for name in part}
    parameters = {f"layers.{number}.{part}" for number in WHOLE for part in ("weight", "bias")}
    kinds = ("exp_avg", "exp_avg_sq", "step")
    every = {f"model.{one}" for one in parameters} | {f"optimizer.{one}.{kind}" for one in parameters for kind in kinds}
    assert (found, saves.names(saved)) == (every, every)

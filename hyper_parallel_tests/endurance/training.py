"""A decoder under the engine's trainer, and what its steps came to, on disk, since who is killed returns nothing."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import Dataset

from hyper_parallel_tests.harness import World, assert_close
from hyper_parallel_tests.models.decoder import DecoderShape, decoder, decoder_batch
from hyper_parallel_tests.models.decoder_layouts import lay_out
from hyper_parallel_tests.models.seeding import Batch

__all__ = ["INTERVAL", "LAYOUTS", "Records", "assert_same_steps", "cards_of", "checkpoint_before", "made"]

SHAPE = DecoderShape(vocab=32, hidden=16, layers=1, heads=4, kv_heads=2, ffn=24, seq=8, tied=False)
LAYOUTS = {"fsdp": {"fsdp": 2}, "fsdp_tp": {"fsdp": 2, "tp": 2}}
# Steps between checkpoints. Rows fill no whole number of batches, so that epochs begin in the middle of one.
INTERVAL, ROWS = 4, 18
DROPOUT = 0.1

MakeCallback = Callable[[Any], Any]


def cards_of(layout: str) -> int:
    """How many ranks a layout has."""
    return math.prod(LAYOUTS[layout].values())


def checkpoint_before(step: int) -> int:
    """The step of the newest checkpoint when a run is killed before that of `step` is complete; 0 for none."""
    return (step - 1) // INTERVAL * INTERVAL


class Rows(Dataset):
    """Rows of tokens, each with those that follow."""

    def __init__(self) -> None:
        self._all = decoder_batch(0, ROWS, SHAPE)

    def __len__(self) -> int:
        return ROWS

    def __getitem__(self, row: int) -> Batch:
        return Batch(self._all.inputs[row], self._all.targets[row])


def made(
    world: World, layout: str, steps: int, *callbacks: MakeCallback, checkpoints: Path | None, stranger: bool = False
) -> Any:
    """A trainer whose next step depends on all that a run has: moments, schedule, dropout, order of rows.

    Args:
        steps: of the whole run.
        callbacks: are called before the checkpoint of a step is saved.
        checkpoints: where they are saved each `INTERVAL` steps; None for none.
        stranger: other weights and seeds, which a restore must replace.
    """
    engine, dims = world.engine, LAYOUTS[layout]
    settings = {
        "training.steps": steps,
        "training.global_batch_size": 4,
        "training.max_grad_norm": 1.0,
        "optimizer.lr": 0.01,
        "lr_schedule.name": "cosine",
        "lr_schedule.warmup_steps": 4,
        **{f"parallel.{name}": degree for name, degree in dims.items()},
    }
    if checkpoints is not None:
        settings |= {"callbacks": "[checkpoint]", "checkpoint.folder": checkpoints, "checkpoint.interval": INTERVAL}
    if stranger:
        settings |= {"training.seed": 77, "data.seed": 78}
        torch.manual_seed(79)
    config = engine.parse_training_config("{}", [f"--{name}={value}" for name, value in settings.items()])
    mesh = world.mesh(**dims)
    model = lay_out(engine, decoder(SHAPE, seed=5 if stranger else 0).to(world.device), mesh).model
    # Behind the hooks of its layout, so that it sees what they hand on: the same on all ranks of a divided layer.
    model.embedding.register_forward_hook(_dropout)
    return engine.BaseTrainer(config, model, partial(_loss, world.device), Rows(), mesh=mesh, callbacks=callbacks)


def _dropout(module: nn.Module, given: Any, hidden: Tensor) -> Tensor:
    return F.dropout(hidden, DROPOUT, module.training)


def _loss(device: torch.device, model: nn.Module, rows: Any) -> Tensor:
    inputs, targets = (one.to(device) for one in rows)
    return model(inputs, targets)


class Records:
    """Loss, and this rank's part of gradients as the optimizer reads them and of parameters: a file a step and rank."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def steps(self) -> list[int]:
        """Those that every rank has written down, ascending."""
        found: dict[int, int] = {}
        for one in self._folder.glob("*-*.pt"):
            step = int(one.stem.partition("-")[0])
            found[step] = found.get(step, 0) + 1
        return sorted(step for step, ranks in found.items() if ranks == max(found.values()))

    def read(self, step: int) -> dict[str, Any]:
        """What a step came to, by ranks."""
        # Not by listing the folder for each of many steps.
        paths = (self._folder / f"{step}-{rank}.pt" for rank in itertools.count())
        found = itertools.takewhile(Path.exists, paths)
        return {f"rank {rank}": torch.load(path) for rank, path in enumerate(found)}

    def writer(self, engine: Any) -> MakeCallback:
        """Makes a callback that writes each step down."""
        return partial(_recorder, engine, self)

    def write(self, step: int, found: dict[str, Any]) -> None:
        """Writes a step down; nobody sees half of it."""
        self._folder.mkdir(parents=True, exist_ok=True)
        rank = dist.get_rank()
        beside = self._folder / f"beside-{rank}"
        torch.save(found, beside)
        beside.rename(self._folder / f"{step}-{rank}.pt")


def _recorder(engine: Any, records: Records, trainer: Any) -> Any:
    class Recorder(engine.Callback):
        name = "recorder"

        def on_pre_optimizer_step(self, state: Any, *, grad_norm: float | None) -> None:
            self.grads = {name: _part(one.grad) for name, one in self.trainer.model.named_parameters()}

        def on_step_end(self, state: Any, *, loss: float, grad_norm: float | None) -> None:
            params = {name: _part(one) for name, one in self.trainer.model.named_parameters()}
            found = {"loss": loss, "norm": grad_norm, "gradient": self.grads, "parameter": params}
            records.write(state.global_step, found)

    return Recorder(trainer)


def _part(tensor: Tensor) -> Tensor:
    """A copy of what this rank has of a tensor."""
    local = tensor.to_local() if hasattr(tensor, "to_local") else tensor
    return local.detach().cpu().clone()


def assert_same_steps(launches: list[Records], straight: Records, begins: list[int], tolerance: Any) -> None:
    """Holds each step that any launch has done to the run that was never stopped.

    Args:
        launches: in their order; together they have done every step.
        begins: the checkpoint that each has to begin with, by its step, 0 for the start.
    """
    assert [one.steps()[0] - 1 for one in launches] == begins, "launches have gone on from other checkpoints"
    for number, step, found in _done(launches):
        assert_close(found, straight.read(step), tolerance, what=f"launch {number}, step {step}")
    assert launches[-1].steps()[-1] == straight.steps()[-1], "the last launch has not come to the end"


def _done(launches: list[Records]) -> Iterator[tuple[int, int, dict[str, Any]]]:
    for number, one in enumerate(launches, 1):
        for step in one.steps():
            yield number, step, one.read(step)

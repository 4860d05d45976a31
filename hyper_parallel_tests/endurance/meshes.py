"""One launch of a run whose launches lie on other meshes: loads, trains some steps, saves."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

from hyper_parallel_tests.harness import World
from hyper_parallel_tests.harness.judging.comparison import full
from hyper_parallel_tests.models.decoder import Decoder, DecoderShape, decoder, decoder_batch
from hyper_parallel_tests.models.decoder_layouts import adam, lay_out, step_of, whole_positions
from hyper_parallel_tests.models.seeding import Batch

__all__ = ["LAYOUTS", "Found", "batches", "launch", "optimizer", "whole", "whole_loss"]

# A block for each of four stages.
SHAPE = DecoderShape(vocab=32, hidden=16, layers=4, heads=4, kv_heads=2, ffn=24, seq=8, tied=False)
ROWS, MICRO_BATCHES = 4, 2
LAYOUTS = {
    "fsdp_2": {"fsdp": 2},
    "fsdp_4": {"fsdp": 4},
    "fsdp_tp": {"fsdp": 2, "tp": 2},
    "pp_2": {"pp": 2},
    "pp_4": {"pp": 4},
}
# Of a start that has nothing to do with the run.
OTHER_SEED = 7

optimizer = partial(adam, lr=1e-2, eps=1e-3)


class Found(NamedTuple):
    """What a launch came to.

    Attributes:
        losses: of the whole batch, (steps,).
        tensors: of its first and its last step, by the step: gradients, and parameters after the update, of this
            rank's stage, whole.
    """

    losses: Tensor
    tensors: dict[int, dict[str, dict[str, Tensor]]]


def whole(world: World, seed: int = 0) -> Decoder:
    """The decoder on one card."""
    return decoder(SHAPE, seed=seed).to(world.device)


def batches(world: World, steps: range) -> list[Batch]:
    """All rows of each step."""
    return [decoder_batch(step, ROWS, SHAPE).to(world.device) for step in steps]


def whole_loss(model: nn.Module, batch: Batch) -> Tensor:
    """On one card."""
    logits = model(batch.inputs, whole_positions(batch.inputs))
    return F.cross_entropy(logits.flatten(0, 1), batch.targets.flatten())


def launch(world: World, layout: str, steps: range, before: Path | None, after: Path) -> Found:
    """Trains these steps on a layout, from a checkpoint or from the start, and saves behind the last one."""
    engine, mesh = world.engine, world.mesh(**LAYOUTS[layout])
    micro_batches = MICRO_BATCHES if "pp" in LAYOUTS[layout] else 1
    start = whole(world, OTHER_SEED if before else 0)
    laid = lay_out(engine, start, mesh, micro_batches=micro_batches)
    update = optimizer(laid.model.parameters())
    if before:
        _load(engine, laid.model, update, before)
    step = step_of(engine, laid, mesh, micro_batches)
    losses, tensors = [], {}
    for number, batch in zip(steps, batches(world, steps), strict=True):
        update.zero_grad()
        loss = step(laid.part(batch))
        losses.append(_mean(world, loss, laid.stages))
        if number in (steps[0], steps[-1]):
            tensors[number] = {"gradient": _whole(laid.model, "grad")}
        update.step()
        if number in tensors:
            tensors[number]["parameter"] = _whole(laid.model, "data")
    engine.save(_state(engine, laid.model, update), checkpoint_id=after)
    return Found(torch.stack(losses), tensors)


def _mean(world: World, loss: Tensor | None, stages: int) -> Tensor:
    """Over the ranks that have a loss: equally many of each part of the batch."""
    total = torch.zeros((), device=world.device) if loss is None else loss.clone()
    dist.all_reduce(total)
    return total * stages / world.size


def _whole(model: nn.Module, what: str) -> dict[str, Tensor]:
    return {name: full(getattr(one, what)) for name, one in model.named_parameters()}


def _state(engine: Any, model: nn.Module, update: torch.optim.Optimizer) -> dict[str, Any]:
    """By names of the whole model, whatever ranks have what; the groups' settings are every launch's own."""
    return {
        "model": engine.get_model_state_dict(model),
        "optimizer": engine.get_optim_state_dict(model, update)["state"],
    }


def _load(engine: Any, model: nn.Module, update: torch.optim.Optimizer, folder: Path) -> None:
    state = _state(engine, model, update)
    engine.load(state, checkpoint_id=folder)
    engine.set_model_state_dict(model, state["model"])
    optimizers = engine.get_optim_state_dict(model, update) | {"state": state["optimizer"]}
    engine.set_optim_state_dict(model, update, optimizers)

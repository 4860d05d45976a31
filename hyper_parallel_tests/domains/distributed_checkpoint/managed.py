"""What the cases of the manager save, and a folder that all ranks see."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from hyper_parallel_tests.domains.distributed_checkpoint.setting import shared_folder
from hyper_parallel_tests.harness import assert_equal
from hyper_parallel_tests.models.seeding import generator

__all__ = ["assert_holds", "empty_state", "filled_folder", "holding", "on_rank_0", "state_of"]

# Not a multiple of 2 or 4, so that the ranks' parts differ in size.
ROWS, COLUMNS = 7, 3


def state_of(engine: Any, world: Any, step: int, rows: int = ROWS) -> dict[str, Any]:
    """The state of a step: tensors that are divided, whole, of several dtypes, and values; other ones each step."""
    weight = torch.randn(rows, COLUMNS, generator=generator(step, "weight"))
    mesh = world.mesh(dp=world.size)
    return {
        "model": {
            "weight": engine.distribute_tensor(weight.to(world.device), mesh, [engine.Shard(0)]),
            "bias": torch.randn(5, generator=generator(step, "bias")).to(world.device),
            "calls": torch.tensor(1000 + step, device=world.device),
        },
        "optimizer": {"weight": {"moment": engine.distribute_tensor(weight.square() + 1, mesh, [engine.Shard(0)])}},
        "position": {"step": step, "name": f"step {step}", "seen": [step, step + 1]},
    }


def empty_state(engine: Any, world: Any, rows: int = ROWS) -> dict[str, Any]:
    """A state of the same form with the numbers of no step."""
    return state_of(engine, world, -1, rows)


def assert_holds(engine: Any, world: Any, state: dict[str, Any], step: int, rows: int = ROWS) -> None:
    """The state is that of a step, all of it; collective."""
    expected = state_of(engine, world, step, rows)
    for part in ("model", "optimizer"):
        assert_equal(state[part], expected[part], what=f"{part} of step {step}")
    assert state["position"] == expected["position"]


def on_rank_0(world: Any, function: Callable[..., Any], *args: Any) -> None:
    """Changes a folder on one rank, with the others waiting until it is changed."""
    if world.rank == 0:
        function(*args)
    dist.barrier()


@contextmanager
def filled_folder(engine: Any, world: Any, *steps: int, **options: Any) -> Iterator[tuple[Any, Path]]:
    """Context with a manager, and its folder in which these steps have been saved."""
    with shared_folder(world) as folder, engine.CheckpointManager(folder / "run", **options) as manager:
        for step in steps:
            assert manager.save(step, state_of(engine, world, step))
        manager.wait()
        yield manager, folder / "run"


def holding(engine: Any, world: Any, manager: Any, step: int | None = None) -> int:
    """The step that a manager loads, when the state is that of the step that it says."""
    state = empty_state(engine, world)
    loaded = manager.load(state, step)
    assert_holds(engine, world, state, loaded)
    return loaded

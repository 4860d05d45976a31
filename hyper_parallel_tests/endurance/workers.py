"""The workers of a group that torchrun's agent starts: they form their group and go on by themselves."""

from __future__ import annotations

import os
from pathlib import Path

from hyper_parallel_tests.endurance.kills import Kill
from hyper_parallel_tests.endurance.launches import goes_on
from hyper_parallel_tests.endurance.training import Records
from hyper_parallel_tests.harness.world import World, device_of, engine_called, join_process_group

__all__ = ["LAYOUT", "WORKERS", "failing_worker", "worker"]

LAYOUT, WORKERS = "fsdp", 2


def worker(engine: str, device: str, steps: int, folder: Path, deaths: list[Kill]) -> tuple[int, str]:
    """Goes on until its death, if its group has one left; how often the group has been started anew, and who it is."""
    rank, restarts = int(os.environ["RANK"]), int(os.environ["TORCHELASTIC_RESTART_COUNT"])
    join_process_group(device, rank, int(os.environ["WORLD_SIZE"]))
    world = World(rank, int(os.environ["WORLD_SIZE"]), device_of(device), engine_called(engine))
    death = deaths[restarts] if restarts < len(deaths) else None
    goes_on(world, LAYOUT, steps, Records(folder / f"launch_{restarts}"), folder / "checkpoints", death)
    return restarts, f"{os.environ['TORCHELASTIC_RUN_ID']} rank {rank}"


def failing_worker(folder: Path) -> None:
    """On rank 1 it leaves a file with the number of its group, and raises."""
    if os.environ["RANK"] == "1":
        (folder / os.environ["TORCHELASTIC_RESTART_COUNT"]).touch()
        raise ArithmeticError("a worker fails")

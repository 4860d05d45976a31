"""Runs of sealed stages, and how they compare with a plan."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from hyper_parallel_tests.domains.pipeline_parallel.comparison import (
    computations,
    messages,
    planned_messages,
    unready,
)
from hyper_parallel_tests.domains.pipeline_parallel.kinds import Kind, Table
from hyper_parallel_tests.domains.pipeline_parallel.observation import WIDTH, Record, sealed_stages
from hyper_parallel_tests.domains.pipeline_parallel.setting import Pipeline, pipeline
from hyper_parallel_tests.harness import World

__all__ = ["assert_as_planned", "observed"]

_ROWS = 2


def observed(
    engine: Any, world: World, kind: Kind, folder: Path, micro_batches: int, runs: int = 2, **options: Any
) -> Record:
    """The last of some runs. Stages may have passes of their own at the first run, by which they learn shapes."""
    record = Record()
    modules = sealed_stages(record, kind.stages_of(world.rank, world.size), kind.stage_num(world.size))
    piped = pipeline(engine, world, kind, folder, micro_batches=micro_batches, modules=modules, **options)
    for _ in range(runs - 1):
        _run(piped, world, micro_batches)
    with record.of_a_run():
        _run(piped, world, micro_batches)
    return record


def _run(piped: Pipeline, world: World, micro_batches: int) -> list[Any]:
    inputs = torch.ones(_ROWS * micro_batches, WIDTH, device=world.device)
    numbers = torch.arange(micro_batches, device=world.device)
    return piped.schedule.run(*([inputs] if piped.is_first else []), numbers=numbers)


def assert_as_planned(record: Record, plan: Table, kind: Kind, world: World) -> None:
    assert computations(record.actions) == computations(plan[world.rank])
    assert messages(record.actions, kind, world.size) == planned_messages(plan, kind, world.rank, world.size)
    assert unready(record.actions) == []
    assert record.strays == []

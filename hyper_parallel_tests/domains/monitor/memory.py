"""A dry run of each layout, beside what the ranks really hold in it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch.distributed as dist

from hyper_parallel_tests.domains.monitor.programs import dry_run_of, layouts, measured
from hyper_parallel_tests.domains.monitor.table import Row, write_table
from hyper_parallel_tests.harness import World


def rows_of(engine: Any, world: World, model: str) -> list[Row]:
    """Estimated and measured bytes, in each layout, of all ranks."""
    found = []
    for layout, degrees in layouts(world.size).items():
        single = layout == "single"
        mesh = own_mesh(engine, world) if single else world.mesh(**degrees)
        held = measured(engine, mesh, model, degrees, world.device)
        estimate = dry_run_of(engine, model, degrees, 0 if single else world.rank)
        found.append(Row(model, layout, world.rank, estimate, held))
    everybody: list[list[Row]] = [[] for _ in range(world.size)]
    dist.all_gather_object(everybody, found)
    return sorted(
        (row for rows in everybody for row in rows), key=lambda row: list(layouts(world.size)).index(row.layout)
    )


def own_mesh(engine: Any, world: World) -> Any:
    """Of this rank alone."""
    return engine.init_device_mesh(world.device.type, (1,), mesh_dim_names=("fsdp",), rank_list=[world.rank])


def check_memory(engine: Any, world: World, artifacts: Path, model: str) -> None:
    """Writes the table, and holds each rank of each layout to it."""
    rows = rows_of(engine, world, model)
    if world.rank == 0:
        write_table(artifacts, rows)
    wrong = [str(row) for row in rows if not row.agrees]
    assert not wrong, "\n".join(wrong)

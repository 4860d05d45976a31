"""What a dry run says of each layout, beside what the ranks really hold in it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist

from hyper_parallel_tests.domains.monitor.programs import MODELS, dry_run_of, layouts, measured
from hyper_parallel_tests.domains.monitor.table import Row, write_table
from hyper_parallel_tests.harness import World, contract


def rows_of(engine: Any, world: World, model: str) -> list[Row]:
    """Estimated and measured bytes, in each layout, of all ranks."""
    found = []
    for layout, degrees in layouts(world.size).items():
        mesh = engine.init_device_mesh(world.device.type, (1,), mesh_dim_names=("fsdp",), rank_list=[world.rank])
        if layout != "single":
            mesh = world.mesh(**degrees)
        held = measured(engine, mesh, MODELS[model](), degrees, world.device)
        estimate = dry_run_of(engine, model, degrees, 0 if layout == "single" else world.rank)
        found.append(Row(model, layout, world.rank, estimate, held))
    everybody: list[list[Row]] = [[] for _ in range(world.size)]
    dist.all_gather_object(everybody, found)
    return sorted(
        (row for rows in everybody for row in rows), key=lambda row: list(layouts(world.size)).index(row.layout)
    )


@contract("MO-2-02")
@pytest.mark.parametrize("model", MODELS)
def test_estimate_is_what_ranks_hold(engine, world, artifacts: Path, model):
    """Parameters, gradients, states and activations take on each rank the bytes that a dry run of it says."""
    rows = rows_of(engine, world, model)
    if world.rank == 0:
        write_table(artifacts, rows)
    wrong = [str(row) for row in rows if not row.agrees]
    assert not wrong, "\n".join(wrong)

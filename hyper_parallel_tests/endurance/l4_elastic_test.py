"""A worker dies, torchrun's agent starts the group anew, training goes on from the last snapshot, twice."""

from __future__ import annotations

import re
import signal
from pathlib import Path
from typing import Any

import pytest

from hyper_parallel_tests.endurance.kills import Kill, drawn
from hyper_parallel_tests.endurance.launches import uninterrupted
from hyper_parallel_tests.endurance.training import INTERVAL, Records, assert_same_steps, checkpoint_before
from hyper_parallel_tests.endurance.workers import LAYOUT, WORKERS, failing_worker, worker
from hyper_parallel_tests.harness import World, contract, jobs

DEATHS = 2


def in_vain(world: World, folder: Path) -> str:
    """How a run ends whose workers fail each time; it leaves signals as they were."""
    numbers = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
    before, elastic_run = [signal.getsignal(one) for one in numbers], world.engine.elastic_run
    with pytest.raises(Exception, match="a worker fails") as caught:
        elastic_run(failing_worker, folder, ranks=WORKERS, max_restarts=1)
    assert [signal.getsignal(one) for one in numbers] == before
    return str(caught.value)


@contract("EN-06")
@pytest.mark.watchdog(180)
def test_restarts_are_used_up(engine, world, tmp_path):
    """A worker that raises counts as one that dies; after as many restarts as were allowed the run tells who failed."""
    [said] = jobs.run(world, in_vain, tmp_path, cards=1)
    assert re.search(r"rank\W+1\b", said), said
    assert sorted(one.name for one in tmp_path.iterdir()) == ["0", "1"]


def supervised(world: World, steps: int, folder: Path, deaths: list[Kill]) -> list[Any]:
    """What the workers of the last group have returned."""
    args = (world.engine.name, world.device.type, steps, folder, deaths)
    return world.engine.elastic_run(worker, *args, ranks=WORKERS, max_restarts=len(deaths))


@contract("EN-06")
@pytest.mark.watchdog(180)
@pytest.mark.steps(14, nightly=400, weekly=4000, seconds=0.5)
def test_group_is_rebuilt(engine, world, ledger, tmp_path, steps):
    """Two workers die at random, one after the other; the run ends as the one in which nobody died, bit for bit."""
    deaths = drawn(steps, steps, INTERVAL + 1, WORKERS, DEATHS)
    print(f"to die: {deaths}")
    straight = Records(tmp_path / "straight")
    jobs.run(world, uninterrupted, LAYOUT, steps, straight, cards=WORKERS)
    [ended] = jobs.run(world, supervised, steps, tmp_path, deaths, cards=1)
    assert ended == [(DEATHS, f"elastic_run rank {rank}") for rank in range(WORKERS)]
    launches = [Records(tmp_path / f"launch_{number}") for number in range(DEATHS + 1)]
    begins = [0, *(checkpoint_before(one.step) for one in deaths)]
    assert_same_steps(launches, straight, begins, ledger["exact"])

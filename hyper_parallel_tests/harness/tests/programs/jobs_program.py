"""Cases that start jobs, many of them bad ones, a healthy case after each."""

from __future__ import annotations

import os
import re
import signal
import sys
import threading
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from hyper_parallel_tests.engines import EngineUnsupported
from hyper_parallel_tests.harness import in_clean_process, jobs
from hyper_parallel_tests.harness.tests.programs.neighbour import neighbour

LIMIT_S = 3


# -- functions of jobs


def total(world, start: float = 0.0) -> float:
    """The sum of `start` and the ranks' numbers."""
    value = torch.tensor(start + world.rank)
    dist.all_reduce(value)
    return value.item()


def place(world) -> dict[str, Any]:
    """What a rank finds about itself."""
    names = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "TMPDIR")
    Path(os.environ["TMPDIR"], "left behind").touch()
    return {
        "pid": os.getpid(),
        "threads": torch.get_num_threads(),
        "draw": torch.rand(1),
        "world": (world.rank, world.size, world.device.type),
        "environment": {name: os.environ[name] for name in names},
    }


def save(world, folder: Path) -> None:
    """Each rank saves its number."""
    torch.save(torch.tensor(world.rank), folder / f"{world.rank}.pt")
    dist.barrier()


def load(world, folder: Path) -> int:
    """What the next rank has saved."""
    return torch.load(folder / f"{(world.rank + 1) % world.size}.pt").item()


def divide(world, number: float) -> float:
    """Wrong on rank 1 alone, which the others wait for."""
    if world.rank == 1:
        print("about to divide", file=sys.stderr)
        number / 0
    return total(world)


def expect(world, expected: float) -> None:
    """An assertion that fails on rank 1 alone, while the others wait for it."""
    if world.rank == 1:
        assert world.rank == expected
    total(world)


def die(world, rank: int, number: int = signal.SIGKILL) -> float:
    """One rank is killed while the others wait for it."""
    if world.rank == rank:
        print("the last word")
        os.kill(os.getpid(), number)
    return total(world)


def leave(world, code: int) -> None:
    """An end of the process that skips all others."""
    os._exit(code)


def leave_in_order(world, code: int) -> None:
    sys.exit(code)


def spin(world) -> None:
    """Rank 1 does not come back, the others wait for it."""
    if world.rank == 1:
        print("about to spin")
        while True:
            pass
    total(world)


def match(world) -> None:
    """No rank runs Python code any more."""
    re.match("(a+)+$", "a" * 64 + "b")


def stop(world) -> None:
    os.kill(os.getpid(), signal.SIGSTOP)


def wait_while_a_peer_fails(world) -> None:
    """Nothing tells the others that rank 1 has failed."""
    if world.rank == 1:
        raise ValueError("the cause")
    threading.Event().wait()


def decline(world) -> None:
    """Rank 1 asks the engine for what it does not offer."""
    if world.rank == 1:
        raise EngineUnsupported("demo", "ring", "only Ulysses is there")
    total(world)


def start_a_child(world) -> int:
    """A process that would outlive its rank."""
    pid = os.fork()
    if pid == 0:
        signal.pause()
        os._exit(0)
    return pid


def come_back_twice(world) -> int:
    """A forked child that runs on in the rank's code."""
    if os.fork() == 0:
        return 1
    os.wait()
    return 0


def start_a_job(world) -> None:
    jobs.run(world, total, cards=1)


def unpicklable(world) -> Any:
    return lambda: None


# -- what a case may rely on


def test_results(world):
    """The results of all ranks, in order."""
    assert world.size == 1
    assert jobs.most_cards() == 4
    assert jobs.run(world, total, 0.5, cards=4) == [8.0] * 4


def test_partial(world):
    assert jobs.run(world, partial(total, start=1.0), cards=2) == [3.0] * 2


def test_place(world):
    """Fresh processes, the ranks of a launch, the seeds of a case, a folder each that goes with them."""
    first, second = (jobs.run(world, place, cards=2) for _ in range(2))
    assert len({one["pid"] for one in (*first, *second)} | {os.getpid()}) == 5
    for rank, one in enumerate(first):
        assert one["world"] == (rank, 2, "cpu")
        told = one["environment"]
        assert (told["RANK"], told["LOCAL_RANK"], told["WORLD_SIZE"]) == (str(rank), str(rank), "2")
        assert (told["LOCAL_WORLD_SIZE"], told["MASTER_ADDR"]) == ("2", "127.0.0.1")
        assert not Path(told["TMPDIR"]).exists()
    assert torch.equal(first[0]["draw"], first[1]["draw"])
    assert torch.equal(first[0]["draw"], second[0]["draw"])
    assert torch.equal(first[0]["draw"], torch.rand(1))


def test_stop_and_start_anew(world, tmp_path):
    """What one job has saved another one loads, with other ranks."""
    jobs.run(world, save, tmp_path, cards=4)
    assert jobs.run(world, load, tmp_path, cards=2) == [1, 0]


def engine_of(world) -> str:
    return world.engine.name


def test_engine(world):
    """The world of a job has the engine."""
    assert jobs.run(world, engine_of, cards=1) == [world.engine.name]


def answer() -> tuple[int, int]:
    """Computed where no engine has changed torch."""
    value = torch.tensor(dist.get_rank() + 1)
    dist.all_reduce(value)
    return os.getpid(), value.item()


def with_a_baseline(world) -> tuple[int, int, int]:
    return os.getpid(), *in_clean_process(answer)


def test_baseline_in_a_job(world):
    """A job computes baselines as the ranks of a case do."""
    found = jobs.run(world, with_a_baseline, cards=2)
    assert [total for _, _, total in found] == [3, 3]
    apart = in_clean_process(os.getpid) != os.getpid()
    assert [own != clean for own, clean, _ in found] == [apart, apart]


def test_killed_rank(world):
    """Who watches is told how each rank ended."""
    killed, peer = jobs.watch(world, die, 0, cards=2)
    assert (killed.exit, killed.error, killed.result) == (-signal.SIGKILL, "", None)
    # torch may warn before, of a host's name that cannot be resolved.
    assert killed.output.endswith("the last word\n")
    assert peer.exit == 1
    assert "RuntimeError" in peer.error
    assert "in total" in peer.traceback


def test_exit_codes(world):
    assert [one.exit for one in jobs.watch(world, leave, 3, cards=2)] == [3, 3]
    assert [one.exit for one in jobs.watch(world, leave_in_order, 4, cards=1)] == [4]
    assert [(one.exit, one.result) for one in jobs.watch(world, total, cards=2)] == [(0, 1.0)] * 2


def test_assertion_that_is_watched(world):
    """It is told as any other end is; assertions of test files have pytest's texts."""
    good, bad = jobs.watch(world, expect, 3, cards=2)
    assert bad.error.startswith("AssertionError: assert 1 == 3")
    assert good.exit == 1


def test_child_of_a_job(world):
    """What a rank leaves running goes with its job."""
    (pid,) = jobs.run(world, start_a_child, cards=1)
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def test_forked_child_comes_back(world):
    assert jobs.run(world, come_back_twice, cards=1) == [0]


@pytest.mark.parametrize(("cards", "says"), [(0, "cards=0"), (5, "1 to 4 cards"), (2.0, r"cards=2\.0")])
def test_number_of_cards(world, cards, says):
    with pytest.raises(ValueError, match=says):
        jobs.run(world, total, cards=cards)


def test_bad_input(world):
    with pytest.raises(TypeError, match=r"functools\.partial in place of lambdas"):
        jobs.run(world, lambda world: None, cards=1)
    with pytest.raises(TypeError, match="the first argument is the case's world"):
        jobs.run(total, world, cards=1)
    with pytest.raises(TypeError, match="a job calls a function"):
        jobs.run(world, "total", cards=1)
    with pytest.raises(ValueError, match="seconds above 0"):
        jobs.run(world, total, cards=1, limit=0)
    with pytest.raises(jobs.JobFailed, match="this cannot be pickled"):
        jobs.run(world, unpicklable, cards=1)
    with pytest.raises(jobs.JobFailed, match="a job starts none itself"):
        jobs.run(world, start_a_job, cards=1)


# -- bad ends


def test_raises(world):
    assert jobs.run(world, total, cards=1) == [0.0]
    jobs.run(world, divide, 1.0, cards=4)


test_neighbour_after_raises = neighbour


def test_asserts(world):
    jobs.run(world, expect, 3, cards=2)


test_neighbour_after_asserts = neighbour


def test_dies(world):
    jobs.run(world, die, 1, cards=2)


test_neighbour_after_dies = neighbour


def test_segmentation_fault(world):
    jobs.run(world, die, 0, signal.SIGSEGV, cards=2)


test_neighbour_after_segmentation_fault = neighbour


def test_peer_waits(world):
    jobs.run(world, wait_while_a_peer_fails, cards=2)


test_neighbour_after_peer_waits = neighbour


def test_limit(world):
    jobs.run(world, spin, cards=2, limit=LIMIT_S)


test_neighbour_after_limit = neighbour


def test_limit_of_a_watched_job(world):
    jobs.watch(world, match, cards=2, limit=LIMIT_S)


test_neighbour_after_watched_limit = neighbour


@pytest.mark.watchdog(LIMIT_S)
def test_watchdog(world):
    jobs.run(world, spin, cards=2)


test_neighbour_after_watchdog = neighbour


@pytest.mark.watchdog(LIMIT_S)
def test_watchdog_outside_python(world):
    jobs.run(world, match, cards=2)


test_neighbour_after_outside_python = neighbour


@pytest.mark.watchdog(LIMIT_S)
def test_watchdog_of_stopped_ranks(world):
    jobs.watch(world, stop, cards=2)


test_neighbour_after_stopped = neighbour


def test_not_offered(world):
    jobs.run(world, decline, cards=2)


def test_not_offered_to_a_watched_job(world):
    jobs.watch(world, decline, cards=2)


test_neighbour_after_not_offered = neighbour


def kill_the_starter(world) -> None:
    os.kill(os.getppid(), signal.SIGKILL)
    threading.Event().wait()


def test_starter_dies(world):
    jobs.run(world, kill_the_starter, cards=2)


def test_starter_dies_and_the_case_goes_on(world):
    with pytest.raises(jobs.JobFailed, match="was gone before job .* was over: killed by SIGKILL"):
        jobs.run(world, kill_the_starter, cards=2)


def test_job_after_the_starter_died(world):
    assert jobs.run(world, total, cards=2) == [1.0, 1.0]


def kill_the_cases_rank(world, pid: int) -> None:
    dist.barrier()
    os.kill(pid, signal.SIGKILL)
    threading.Event().wait()


def test_cases_rank_dies(world):
    jobs.run(world, kill_the_cases_rank, os.getpid(), cards=2)


test_neighbour_at_the_end = neighbour

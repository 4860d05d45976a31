"""Baselines apart from two ranks: what they may rely on, and how they come to a bad end."""

from __future__ import annotations

import os
import random
import re
import signal
import sys
import threading
import types
from functools import partial

import numpy
import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from hyper_parallel_tests.harness import (
    assert_equal,
    assert_parity,
    in_clean_process,
    mean_over_ranks,
    train_baseline,
)
from hyper_parallel_tests.harness.judging.clean import BaselineError
from hyper_parallel_tests.harness.tests.programs.neighbour import neighbour

LIMIT_S = 3
sgd = partial(torch.optim.SGD, lr=0.1)


def where() -> tuple[int, int, int]:
    return os.getpid(), dist.get_rank(), dist.get_world_size()


def test_apart(world):
    """A baseline runs in a process of its own, which is the same one each time and has the rank's place."""
    pid, *place = in_clean_process(where)
    assert pid != os.getpid()
    assert place == [world.rank, world.size]
    assert in_clean_process(where)[0] == pid


def total(value: torch.Tensor) -> torch.Tensor:
    dist.all_reduce(value)
    return value


def test_group_of_its_own(world):
    """Collectives are among the baselines, and what the rank's group does is not theirs."""
    mine = torch.tensor([float(world.rank + 1)])
    work = dist.all_reduce(theirs := mine.clone(), async_op=True)
    assert_equal(in_clean_process(total, mine), torch.tensor([3.0]))
    work.wait()
    assert_equal(theirs, torch.tensor([3.0]))
    assert_equal(mine, torch.tensor([float(world.rank + 1)]))


def squares(model: nn.Module, rows: torch.Tensor) -> torch.Tensor:
    return model(rows).square().mean()


def test_ddp(world, ledger):
    """A baseline under DDP has the gradients of all ranks' rows, and the rank's model is as it was."""
    rows = [torch.full((2, 3), float(step + 1)) for step in range(2)]
    model = nn.Linear(3, 3)
    before = {name: one.detach().clone() for name, one in model.named_parameters()}
    own = [one * (world.rank + 1) for one in rows]
    ddp = train_baseline(model, own, squares, wrap=DistributedDataParallel, optimizer=sgd, average=mean_over_ranks)
    alone = train_baseline(model, [torch.cat([one, 2 * one]) for one in rows], squares, optimizer=sgd)
    assert_parity(alone, ddp, ledger["fsdp_1d_fp32"])
    assert_equal(dict(model.named_parameters()), before)


def draw() -> list[float]:
    return [random.random(), numpy.random.rand(), torch.rand(()).item()]


def test_random_state(world):
    """A baseline draws what the rank would draw, and the rank goes on from there."""
    python, cpu, numbers = random.getstate(), torch.get_rng_state(), numpy.random.get_state()
    expected = [draw() for _ in range(3)]
    random.setstate(python)
    torch.set_rng_state(cpu)
    numpy.random.set_state(numbers)
    assert [draw(), in_clean_process(draw), draw()] == expected


def test_change_stays_outside(world):
    """What a case, a fault or an engine changes in the rank is not changed there."""
    original, torch.manual_seed = torch.manual_seed, None
    try:
        assert not in_clean_process(is_broken)
    finally:
        torch.manual_seed = original


def is_broken() -> bool:
    return torch.manual_seed is None


def inner() -> str:
    return in_clean_process(str, 1)


def test_nested(world):
    """A baseline within a baseline is a plain call."""
    assert in_clean_process(inner) == "1"


def test_lambda(world):
    """What cannot travel is refused, and the message says what to do."""
    with pytest.raises(TypeError, match=r"functools\.partial in place of lambdas"):
        in_clean_process(lambda: 1)


def asks_for_a_mesh(world) -> None:
    world.mesh(dp=world.size)


def test_world_without_engine(world):
    """A world there has no engine."""
    with pytest.raises(BaselineError, match="AttributeError: a baseline runs without the engine"):
        in_clean_process(asks_for_a_mesh, world)


def leave_default_dtype() -> None:
    torch.set_default_dtype(torch.float64)


def test_leak(world):
    """What a baseline leaves behind there would reach the next one."""
    in_clean_process(leave_default_dtype)


test_neighbour_after_leak = neighbour


def import_the_engine() -> None:
    sys.modules["hyper_parallel_tests.engines.torch_native.mesh"] = types.ModuleType("mesh")


def test_imports_the_engine(world):
    """A baseline that has seen the engine is none."""
    in_clean_process(import_the_engine)


test_neighbour_after_import = neighbour


def divide(number: int) -> float:
    return 1 / number


def test_raises(world):
    in_clean_process(divide, world.rank)


test_neighbour_after_raises = neighbour


def fail() -> None:
    pytest.fail("so that a session would end")


def test_fails(world):
    in_clean_process(fail)


test_neighbour_after_fails = neighbour


def wait_on_rank_1() -> None:
    if dist.get_rank() == 1:
        print("about to wait", flush=True)
        threading.Event().wait()


@pytest.mark.watchdog(LIMIT_S)
def test_hangs(world):
    in_clean_process(wait_on_rank_1)
    dist.barrier()


test_neighbour_after_hangs = neighbour


@pytest.mark.watchdog(LIMIT_S)
def test_hangs_outside_python(world):
    in_clean_process(re.match, "(a+)+$", "a" * 64 + "b")


test_neighbour_after_outside_python = neighbour


@pytest.mark.watchdog(LIMIT_S)
def test_stopped(world):
    in_clean_process(end_by, signal.SIGSTOP)


test_neighbour_after_stopped = neighbour


def lonely() -> None:
    if dist.get_rank() == 0:
        dist.all_reduce(torch.zeros(2))


@pytest.mark.watchdog(LIMIT_S)
def test_hangs_in_a_collective(world):
    in_clean_process(lonely)


test_neighbour_after_collective = neighbour


def end_by(number: int) -> None:
    os.kill(os.getpid(), number)


def test_dies(world):
    in_clean_process(end_by, signal.SIGKILL)


test_neighbour_after_dies = neighbour


def test_crashes(world):
    in_clean_process(end_by, signal.SIGSEGV)


test_neighbour_after_crashes = neighbour


def test_death_that_a_case_survives(world):
    """The next case is to have a fresh sibling."""
    with pytest.raises(BaselineError, match="killed by SIGKILL"):
        in_clean_process(end_by, signal.SIGKILL)


def test_after_a_death(world):
    """It has one."""
    assert in_clean_process(divide, 2) == 0.5


test_neighbour_at_the_end = neighbour

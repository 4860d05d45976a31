"""Runs baselines in a process whose torch is as PyTorch made it.

An engine may change torch itself when it is imported: HyperParallel puts its own backward hook in the place of
PyTorch's. Each of its ranks has a sibling, forked before, in which baselines run. With an engine that leaves torch
alone they run in the rank, and in the same way: on copies of their arguments, and without the engine.
"""

from __future__ import annotations

import io
import pickle
import random
import sys
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ParamSpec, Protocol, TypeVar

import torch

__all__ = ["Answer", "BaselineError", "answer", "in_clean_process", "inside", "pack", "run_in", "unpack"]

P, R = ParamSpec("P"), TypeVar("R")


class BaselineError(Exception):
    """A baseline could not be computed, which says nothing about the engine."""


@dataclass(frozen=True)
class Answer:
    """What became of a job: a packed result, or an error in one line and its traceback."""

    result: bytes = b""
    error: str = ""
    traceback: str = ""


class Process(Protocol):
    """A process without the engine."""

    def answer(self, job: bytes) -> Answer:
        """Have a job done there.

        Raises:
            BaselineError: the process has ended; the message says how.
        """


_process: Process | None = None
_inside = False


def run_in(process: Process) -> None:
    """Have every baseline from now on run in another process."""
    global _process
    _process = process


def inside() -> bool:
    """Whether what runs now is part of a baseline."""
    return _inside


def in_clean_process(function: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> R:
    """Call a function where no engine has changed torch, and return what it returns; all ranks call this together.

    It starts from the random state that this process is in, and this process goes on from the state that it leaves.
    There is a default process group over all ranks, unless the case is one of layer 0. A `World` among the arguments
    has no engine there.

    Args:
        function: of a module, or a `functools.partial` of one: it travels to another process by its name.
        args, kwargs: whatever can be pickled. The function gets copies, so that nothing it does to them is seen here.

    Raises:
        BaselineError: the function raised, its result cannot be pickled, or its process ended. Where the baseline
            runs in this process its own exception is raised.
        TypeError: the function or an argument cannot be pickled.
    """
    if _inside:
        return function(*args, **kwargs)
    try:
        job = pack((_random_state(), function, args, kwargs))
    except (AttributeError, TypeError, pickle.PicklingError) as error:
        raise TypeError(
            f"a baseline travels to another process, and this cannot be pickled: {error}; give it functions of "
            "modules and functools.partial in place of lambdas and inner functions"
        ) from error
    if _process is None:
        return _run(job)
    said = _process.answer(job)
    if said.error:
        raise BaselineError(f"the baseline failed in its clean process: {said.error}") from _Remote(said.traceback)
    result, state = unpack(said.result)
    _set_random_state(state)
    return result


def answer(job: bytes) -> Answer:
    """Do a job in this process, the clean one."""
    try:
        return Answer(pack((_run(job), _random_state())))
    except BaseException as error:
        line = traceback.format_exception_only(error)[-1].strip()
        return Answer(error=line, traceback=traceback.format_exc())


class _Remote(Exception):
    """The traceback in the other process, for reports."""

    def __str__(self) -> str:
        return f"\n{self.args[0]}"


def _run(job: bytes) -> Any:
    global _inside
    state, function, args, kwargs = unpack(job)
    _set_random_state(state)
    _inside = True
    try:
        return function(*args, **kwargs)
    finally:
        _inside = False


def pack(value: Any) -> bytes:
    """As torch.save does: tensors that share memory here do so there."""
    buffer = io.BytesIO()
    torch.save(value, buffer, pickle_protocol=pickle.DEFAULT_PROTOCOL)
    return buffer.getvalue()


def unpack(packed: bytes) -> Any:
    """What `pack` was given."""
    return torch.load(io.BytesIO(packed), weights_only=False)


def _random_state() -> dict[str, Any]:
    """The state of every generator that a case is seeded with."""
    state: dict[str, Any] = {"python": random.getstate(), "cpu": torch.get_rng_state()}
    if "numpy" in sys.modules:
        state["numpy"] = sys.modules["numpy"].random.get_state()
    if torch.accelerator.is_available():
        device = torch.accelerator.current_accelerator().type
        state[device] = torch.get_device_module(device).get_rng_state()
    return state


def _set_random_state(state: dict[str, Any]) -> None:
    for kind, value in state.items():
        if kind == "python":
            random.setstate(value)
        elif kind == "numpy":
            import numpy

            numpy.random.set_state(value)
        else:
            module = torch if kind == "cpu" else torch.get_device_module(kind)
            module.set_rng_state(value)

"""Whether a training step leaves everything as it found it: parameters sharded, nothing saved, nothing pending."""

from __future__ import annotations

import gc
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.modules import module as modules

from hyper_parallel_tests.harness import trace
from hyper_parallel_tests.harness.judging.flight import pending_collectives

__all__ = ["assert_closed"]

# A backend's threads let go of a finished message a moment after its end is told; what they hold longer is kept.
_LETTING_GO_S = 10.0
_OTHER = {"send": "recv", "recv": "send"}


def assert_closed(backward: Callable[[], object], update: torch.optim.Optimizer, *models: nn.Module) -> None:
    """Hold three more training steps to leaving everything as they found it; all ranks call this together.

    Args:
        backward: forward and backward of a step, and what stands between them and the update.
        update: the optimizer, which zeroes the gradients before and steps after it.
        models: the modules that it trains, wrapped as they are.

    Raises:
        AssertionError: after a step a parameter is gathered or lies elsewhere, a hook more or less is there, a
            saved-tensors hook is active, a collective is pending, a message was sent that nobody took, tensors or
            storages have grown in number or bytes, or storage that a step made outlives the step after it.
    """

    def step() -> None:
        update.zero_grad()
        backward()
        update.step()

    lying = _lying(models)
    # The first step makes what stays: optimizer state, buffers, groups.
    step()
    hooks = _hooks(models)
    with trace.live_tensors() as live:
        held = _held(live)
        with trace.made() as made:
            step()
        end = _end_of_patience()
        found = [
            *_changes("the parameter", lying, _lying(models)),
            *_changes("the hooks of", hooks, _hooks(models)),
            *_active_hooks(),
            *_unless(lambda: not pending_collectives(), lambda: f"pending are {pending_collectives()}", end),
            *_unless(
                lambda: _held(live) == held,
                lambda: f"{held} have become {_held(live)}, new are {', '.join(live.describe()) or 'none'}",
                end,
            ),
        ]
        with ExitStack() as followed:
            storages = [followed.enter_context(trace.storage(model)) for model in models]
            sent = followed.enter_context(trace.collectives())
            step()
            for one in storages:
                one.sample("a step")
        found += _without_taker(sent)
        found += [f"gathered are still {left}" for one in storages if (left := one.unsharded_after("a step"))]
        found += _unless(
            lambda: made.held() == 0,
            lambda: f"{made.held()} bytes that a step made outlive the step after it",
            end if found else _end_of_patience(),
        )
    assert not found, "the step is not closed: " + "; ".join(found)


def _lying(models: Sequence[nn.Module]) -> dict[str, str]:
    """Parameter -> its identity, shape and bytes on this rank."""
    found = {}
    for name, param in _named(models, lambda one: one.named_parameters()):
        local = param.to_local() if hasattr(param, "to_local") else param
        found[name] = f"{id(param):x}, {tuple(local.shape)} of {local.untyped_storage().nbytes()} bytes"
    return found


def _hooks(models: Sequence[nn.Module]) -> dict[str, int]:
    """Module, parameter or "every module" -> how many hooks it has."""
    found = {"every module": sum(map(len, _dicts(modules, "_global_")))}
    for name, module in _named(models, lambda one: one.named_modules()):
        found[name or "the root"] = sum(map(len, _dicts(module)))
    for name, param in _named(models, lambda one: one.named_parameters()):
        found[name] = sum(map(len, _dicts(param)))
    return found


def _dicts(owner: Any, prefix: str = "_") -> list[Mapping[int, Any]]:
    """An object's dictionaries of hooks."""
    # An engine's tensors may refuse to be asked for their names.
    with torch._C.DisableTorchFunctionSubclass():
        names = [name for name in dir(owner) if name.startswith(prefix) and name.endswith("_hooks")]
        return [hooks for hooks in (getattr(owner, name) for name in names) if isinstance(hooks, Mapping)]


def _named(
    models: Sequence[nn.Module], of: Callable[[nn.Module], Iterator[tuple[str, Any]]]
) -> Iterator[tuple[str, Any]]:
    for number, model in enumerate(models):
        prefix = f"model {number} " if len(models) > 1 else ""
        for name, one in of(model):
            yield prefix + name, one


def _changes(what: str, before: Mapping[str, object], now: Mapping[str, object]) -> Iterator[str]:
    for name in sorted(before.keys() | now.keys()):
        if before.get(name) != now.get(name):
            yield f"{what} {name}: {before.get(name, 'nothing')} became {now.get(name, 'nothing')}"


def _held(live: trace.LiveTensors) -> str:
    """Tensors; and storages, theirs and those without a tensor that Python knows, as host memory of swapped ones is."""
    # First the tensors: to be asked for its storage makes it one of Python's objects.
    tensors = f"{live.count()} tensors of {live.bytes()} bytes"
    storages = {one._cdata: one.nbytes() for one in gc.get_objects() if type(one) is torch.UntypedStorage}
    return f"{tensors} with storages of {sum(storages.values())} bytes"


def _without_taker(sent: trace.Collectives) -> Iterator[str]:
    """Messages of a step that their receiver has not asked for, or this rank in vain; all ranks call this.

    The recorder of pending collectives does not know messages.
    """
    here, own = dist.get_rank(), Counter((one.op, one.peer, one.dtype, one.shapes) for one in sent if one.op in _OTHER)
    everyone: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(everyone, own)
    for (op, peer, dtype, shapes), number in own.items():
        answered = everyone[peer][_OTHER[op], here, dtype, shapes]
        if answered != number:
            yield f"of {number} x {op} of {dtype}{shapes} with rank {peer} that has {answered}"


def _active_hooks() -> list[str]:
    active = torch._C._autograd._top_saved_tensors_default_hooks(False) is not None
    return ["a hook for saved tensors is still active"] if active else []


def _end_of_patience() -> float:
    return time.monotonic() + _LETTING_GO_S


def _unless(holds: Callable[[], bool], problem: Callable[[], str], end: float) -> list[str]:
    pause = 0.01
    while not holds():
        if time.monotonic() > end:
            return [problem()]
        threading.Event().wait(pause)
        # To look takes longer than most of what is waited for, and others need the processor.
        pause = min(2 * pause, 1.0)
    return []

"""Repeats a computation in the same process with the same seeds and wants every bit again."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch

from hyper_parallel_tests.harness.judging.comparison import VacuousComparison
from hyper_parallel_tests.harness.judging.findings import on_rank

__all__ = ["assert_bitwise_repeatable"]


def assert_bitwise_repeatable(
    run: Callable[..., Any], *, fresh: Callable[[], Any] | None = None, times: int = 2
) -> Any:
    """Run `times` times from the same state and hold all results to the first one, bit by bit.

    Each run starts from the same global random state (torch on all devices, Python's `random`).

    Args:
        run: returns tensors, numbers or text in any nest of dicts, sequences and dataclasses, for example a
            parity Track. Of a sharded tensor each rank compares its own shard.
        fresh: makes the state that `run` is called with, anew for each run; without it `run` makes its own.
        times: number of runs, at least 2.

    Returns:
        The result of the first run.

    Raises:
        AssertionError: a later run differs; the message names the first value that does, and where.
        VacuousComparison: `run` returned no tensor, so there is nothing to compare.
    """
    if times < 2:
        raise ValueError(f"a repetition needs at least 2 runs, got times={times}")
    python_state, torch_states = random.getstate(), _torch_states()
    kept: dict[str, Any] = {}
    first = None
    for number in range(times):
        random.setstate(python_state)
        _restore(torch_states)
        result = run(fresh()) if fresh is not None else run()
        leaves = dict(_leaves(result, "result"))
        if number == 0:
            # A copy, since the next run may write to the same memory.
            kept = {where: leaf.clone() if isinstance(leaf, torch.Tensor) else leaf for where, leaf in leaves.items()}
            first = result
            if not any(isinstance(leaf, torch.Tensor) for leaf in kept.values()):
                raise VacuousComparison(
                    f"run returned no tensor but {sorted(kept) or 'nothing'}; return what must repeat"
                )
            continue
        _hold(kept, leaves, number)
    return first


def _hold(kept: dict[str, Any], leaves: dict[str, Any], number: int) -> None:
    for where, before in kept.items():
        if where not in leaves:
            raise AssertionError(f"run {number} has no {where}, run 0 has one, seen{on_rank()}")
        problem = _difference(before, leaves[where])
        if problem:
            raise AssertionError(f"run {number} does not repeat run 0{on_rank()}: first at {where}: {problem}")
    extra = [where for where in leaves if where not in kept]
    if extra:
        raise AssertionError(f"run {number} has {extra[0]}, run 0 has none, seen{on_rank()}")


def _difference(before: Any, after: Any) -> str:
    """What differs between two leaves, empty for nothing. NaNs of the same bits are the same."""
    if not (isinstance(before, torch.Tensor) and isinstance(after, torch.Tensor)):
        return "" if type(before) is type(after) and repr(before) == repr(after) else f"{before!r}, then {after!r}"
    if before.dtype != after.dtype or before.shape != after.shape:
        return f"{before.dtype}{list(before.shape)}, then {after.dtype}{list(after.shape)}"
    bits = _bits(before) != _bits(after)
    if not bits.any():
        return ""
    flat = bits.reshape(before.numel(), -1).any(dim=1)
    index = [int(one) for one in torch.unravel_index(flat.int().argmax(), before.shape)] if before.ndim else []
    values = f"{before[tuple(index)].item()!r}, then {after[tuple(index)].item()!r}"
    return f"{int(flat.sum())} of {before.numel()} elements, first {index}: {values}"


def _bits(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8)


def _leaves(value: Any, where: str) -> Iterator[tuple[str, Any]]:
    if isinstance(value, torch.Tensor):
        local = getattr(value, "to_local", None)
        yield where, (local() if local is not None else value).detach()
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        for part in dataclasses.fields(value):
            yield from _leaves(getattr(value, part.name), f"{where}.{part.name}")
    elif isinstance(value, Mapping):
        for key, part in value.items():
            yield from _leaves(part, f"{where}[{key!r}]")
    elif isinstance(value, Sequence) and not isinstance(value, (str, bytes)):
        for number, part in enumerate(value):
            yield from _leaves(part, f"{where}[{number}]")
    else:
        yield where, value


def _torch_states() -> dict[str, Any]:
    states: dict[str, Any] = {"cpu": torch.get_rng_state()}
    accelerator = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    if accelerator is not None:
        states[accelerator.type] = torch.get_device_module(accelerator).get_rng_state()
    return states


def _restore(states: dict[str, Any]) -> None:
    for device, state in states.items():
        module = torch if device == "cpu" else torch.get_device_module(device)
        module.set_rng_state(state)

"""The state of every generator that training may draw from, as tensors and numbers, and the seeds of a new run."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

__all__ = ["random_state", "seed_everything", "set_random_state"]


def random_state(tracker: Any = None) -> dict[str, Any]:
    """By flat keys: `torch`, `accelerator` where there is one, `python.*`, `numpy.*`, and `streams.*` of a tracker."""
    version, numbers, gauss = random.getstate()
    kind, keys, place, has_gauss, cached = np.random.get_state()
    found: dict[str, Any] = {
        "torch": torch.get_rng_state(),
        "python.version": version,
        "python.numbers": torch.tensor(numbers),
        "python.gauss": gauss,
        "numpy.kind": kind,
        "numpy.keys": torch.from_numpy(keys.astype(np.int64)),
        "numpy.rest": (place, has_gauss, cached),
    }
    if torch.accelerator.is_available():
        found["accelerator"] = torch.get_device_module().get_rng_state()
    if tracker is not None:
        states = tracker.get_states()
        found["streams.seeds"] = tuple(states["seeds"])
        for name, kept in states["streams"].items():
            found |= {f"streams.states.{name}.{number}": one for number, one in enumerate(kept)}
    return found


def set_random_state(state: Mapping[str, Any], tracker: Any = None) -> None:
    """Puts every generator where it was at `random_state`."""
    torch.set_rng_state(state["torch"])
    random.setstate((state["python.version"], tuple(state["python.numbers"].tolist()), state["python.gauss"]))
    keys = state["numpy.keys"].numpy().astype(np.uint32)
    np.random.set_state((state["numpy.kind"], keys, *state["numpy.rest"]))
    if "accelerator" in state:
        torch.get_device_module().set_rng_state(state["accelerator"])
    if tracker is not None:
        tracker.set_states({"streams": _streams(state), "seeds": list(state["streams.seeds"])})


def _streams(state: Mapping[str, Any]) -> dict[str, list[Any]]:
    found: dict[str, list[Any]] = {}
    for key, value in state.items():
        if key.startswith("streams.states."):
            name, _, number = key.removeprefix("streams.states.").rpartition(".")
            found.setdefault(name, []).insert(int(number), value)
    return found


def seed_everything(seed: int, *more: int) -> None:
    """Seeds all default generators of this process; other numbers give other streams."""
    digest = hashlib.blake2b(f"{seed} {more}".encode(), digest_size=4).digest()
    mixed = int.from_bytes(digest)
    torch.manual_seed(mixed)
    random.seed(mixed)
    np.random.seed(mixed)

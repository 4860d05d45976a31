"""What a capability costs: steps with it and without it by turns in one process, and the ratios of the two."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from hyper_parallel_tests.harness.judging.trace.collectives import unfolds

__all__ = ["Ratios", "assert_within_bands", "ratios"]

_PAIRS, _WARM_UP = 25, 4


@dataclass(frozen=True)
class Ratios:
    """With the capability to without it.

    Attributes:
        time: of a step. On CPU, where ranks share processors, it is the processor time that this rank's threads spend:
            how long a step lasts there is told by the neighbours. On an accelerator it is how long a step lasts.
        memory: the most bytes of tensors at once during a step.
    """

    time: float
    memory: float


def ratios(device: torch.device, on: Callable[[], object], off: Callable[[], object]) -> Ratios:
    """Compares a training step with one without the capability; all ranks call this together.

    Args:
        on, off: a step of the same model, from rows to update.
    """
    for _ in range(_WARM_UP):
        on(), off()
    memory = _most_bytes(on) / _most_bytes(off)
    pairs = [(_seconds(device, on), _seconds(device, off)) for _ in range(_PAIRS)]
    return Ratios(statistics.median(with_it / without for with_it, without in pairs), memory)


def assert_within_bands(found: Ratios, ledger: Any, capability: str) -> None:
    """Holds both ratios to the ledger's bands `endurance_time_<capability>` and `endurance_memory_<capability>`.

    Raises:
        AssertionError: one lies outside; the message has it and its band.
    """
    bands = {what: ledger[f"endurance_{what}_{capability}"] for what in ("time", "memory")}
    outside = [
        f"{what} is {value:.3f} times that without, {bands[what]}"
        for what, value in vars(found).items()
        if value not in bands[what]
    ]
    assert not outside, f"{capability} costs otherwise than it should: {'; '.join(outside)}"


def _seconds(device: torch.device, step: Callable[[], object]) -> float:
    # So that no rank's step begins with waiting for another's last one.
    dist.barrier()
    clock = time.process_time if device.type == "cpu" else time.perf_counter
    _finish(device)
    start = clock()
    step()
    _finish(device)
    return clock() - start


def _finish(device: torch.device) -> None:
    if device.type != "cpu":
        torch.accelerator.synchronize(device)


def _most_bytes(step: Callable[[], object]) -> int:
    with _Touched() as touched:
        step()
    return touched.most


class _Touched(TorchDispatchMode):
    """The storages that this thread's operators read or write: parameters, gathered ones, states, what is saved.

    Attributes:
        most: the most bytes of them at once.
    """

    def __init__(self) -> None:
        super().__init__()
        self.most = 0
        self._seen: dict[int, StorageWeakRef] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        # What a distributed tensor does comes back here as operations on plain tensors.
        if any(unfolds(kind) for kind in types):
            return NotImplemented
        result = func(*args, **kwargs)
        for tensor in tree_leaves((args, kwargs, result)):
            if isinstance(tensor, torch.Tensor):
                storage = tensor.untyped_storage()
                self._seen[storage._cdata] = StorageWeakRef(storage)
        self.most = max(self.most, sum(map(_size, self._seen.values())))
        return result


def _size(reference: StorageWeakRef) -> int:
    """Bytes of a storage that may be gone."""
    storage = torch.UntypedStorage._new_with_weak_ptr(reference.cdata)
    return 0 if storage is None else storage.nbytes()

"""What a process holds while it trains: memory, tensors, threads, descriptors; and whether that grows."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import astuple, dataclass, fields
from pathlib import Path

import torch

__all__ = ["Resources", "Sampling", "growth", "sampling"]

_SELF = Path("/proc/self")


@dataclass(frozen=True)
class Resources:
    """One sample.

    Attributes:
        memory: resident bytes of the process, and on an accelerator those that its tensors take.
        tensors: how many live that did not when the sampling began.
        bytes: of their storages, each once.
        threads: of the process, whoever started them.
        descriptors: open ones.
    """

    memory: int
    tensors: int
    bytes: int
    threads: int
    descriptors: int


class Sampling:
    """Takes samples; see `sampling`."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self.samples: list[Resources] = []

    def take(self) -> None:
        """One more sample."""
        gc.collect()
        tensors = [one for one in gc.get_objects() if issubclass(type(one), torch.Tensor)]
        storages = {one.data_ptr(): one.nbytes() for one in map(_storage, tensors)}
        self.samples.append(
            Resources(
                memory=self._memory(),
                tensors=len(tensors),
                bytes=sum(storages.values()),
                threads=len(os.listdir(_SELF / "task")),
                descriptors=len(os.listdir(_SELF / "fd")),
            )
        )

    def growth(self) -> dict[str, float]:
        """How much each quantity has grown from the first sample to the last."""
        columns = zip(*map(astuple, self.samples), strict=True)
        return {field.name: growth(column) for field, column in zip(fields(Resources), columns, strict=True)}

    def _memory(self) -> int:
        pages = int((_SELF / "statm").read_text().split()[1])
        held = 0 if self._device.type == "cpu" else torch.accelerator.memory_allocated(self._device)
        return pages * os.sysconf("SC_PAGE_SIZE") + held


@contextmanager
def sampling(device: torch.device) -> Iterator[Sampling]:
    """Sets aside what lives now and has samples taken of what comes after it, at a millisecond each.

    Without that, the collector would walk through all of torch's objects each time.
    """
    gc.collect()
    gc.freeze()
    try:
        yield Sampling(device)
    finally:
        gc.unfreeze()


def growth(values: Sequence[float]) -> float:
    """From the first of the samples to the last, by the median of the slopes between all pairs (Theil and Sen).

    Neither a jump nor a few samples that lie elsewhere move it, but a steady small growth does. One sample alone
    has not grown.
    """
    if len(values) < 2:
        return 0.0
    places, heights = torch.arange(len(values), dtype=torch.float64), torch.tensor(values, dtype=torch.float64)
    first, second = torch.triu_indices(len(values), len(values), offset=1)
    slopes = (heights[second] - heights[first]) / (places[second] - places[first])
    return float(slopes.median()) * (len(values) - 1)


def _storage(tensor: torch.Tensor) -> torch.UntypedStorage:
    while hasattr(tensor, "__tensor_flatten__"):
        tensor = getattr(tensor, tensor.__tensor_flatten__()[0][0])
    return tensor.untyped_storage()

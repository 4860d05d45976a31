"""Copies between device and host that are made beside the computation."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any, NamedTuple

import torch
from torch import Tensor, UntypedStorage

# The largest element of any dtype has so many bytes, so parts of a fused buffer begin at multiples of it.
ALIGNMENT = 16
_NOTHING_OF_USE = 0xFF


class Part(NamedTuple):
    """Bytes of a storage."""

    storage: UntypedStorage
    start: int
    size: int

    def bytes(self) -> Tensor:
        """Them as a tensor, (size,) of uint8."""
        whole = torch.empty(0, dtype=torch.uint8, device=self.storage.device).set_(self.storage)
        return whole[self.start : self.start + self.size]


class _Watch:
    """What ``watch_swap_copies`` knows of copies."""

    def __init__(self, held: bool) -> None:
        self.held = held
        self.done: list[tuple[str, int]] = []
        self.transfers: list[Transfer] = []


_watch: _Watch | None = None
_fused = False


class Transfer:
    """Copies that one thread makes one after the other, and with which it ends.

    Args:
        direction: "offload" or "load".
        device: the one that is not the host.
        copies: pairs of (to, from).
    """

    def __init__(self, direction: str, device: torch.device, copies: Sequence[tuple[Part, Part]]) -> None:
        self._direction, self._watch = direction, _watch
        self._failure: Exception | None = None
        self._wanted = threading.Event()
        if self._watch is not None and self._watch.held:
            for to, _ in copies:
                to.bytes().fill_(_NOTHING_OF_USE)
        else:
            self._wanted.set()
        self._device, self._stream = device, copy_stream(device)
        self._computed = _event_now(device) if self._stream is not None else None
        self._copied: Any = None
        # The thread alone holds the copies, so that they are let go of when it ends.
        name = f"{direction} of {len(copies)} storages"
        self._thread = threading.Thread(target=self._work, args=(list(copies),), name=name, daemon=True)
        self._thread.start()
        if self._watch is not None:
            self._watch.transfers.append(self)

    def wait(self) -> None:
        """Returns when what is computed from now on sees the copies.

        Raises:
            RuntimeError: one of them failed.
        """
        self.finish()
        if self._failure is not None:
            raise RuntimeError(f"the {self._direction} of swapped tensors failed: {self._failure}") from self._failure
        if self._copied is not None:
            torch.accelerator.current_stream(self._device).wait_event(self._copied)

    def finish(self) -> None:
        """Returns when the thread has ended, however it did."""
        self._wanted.set()
        self._thread.join()

    def _work(self, copies: list[tuple[Part, Part]]) -> None:
        self._wanted.wait()
        try:
            with self._stream if self._stream is not None else nullcontext():
                if self._stream is not None:
                    self._stream.wait_event(self._computed)
                for to, source in copies:
                    target, origin = to.bytes(), source.bytes()
                    if self._stream is not None:
                        # Nobody else gets the device's memory before the copy is done, whoever lets go of it.
                        (target if target.device == self._device else origin).record_stream(self._stream)
                    target.copy_(origin, non_blocking=True)
                    if self._watch is not None:
                        self._watch.done.append((self._direction, to.size))
                if self._stream is not None:
                    self._copied = self._stream.record_event()
        except Exception as error:
            self._failure = error


_streams: dict[torch.device, torch.Stream] = {}


def copy_stream(device: torch.device) -> torch.Stream | None:
    """The device's stream for copies; None where it has no streams."""
    if device.type == "cpu":
        return None
    return _streams.setdefault(device, torch.Stream(device))


def _event_now(device: torch.device) -> torch.Event:
    return torch.accelerator.current_stream(device).record_event()


def device_storage(size: int, device: torch.device) -> UntypedStorage:
    """Memory of the device, which dispatch modes see as they see what the network computes."""
    return torch.empty(size, dtype=torch.uint8, device=device).untyped_storage()


def host_storage(size: int, device: torch.device) -> UntypedStorage:
    """Host memory for copies from and to a device, of its own also where the device is the CPU."""
    # Made as a storage, so that no dispatch mode takes it for something that the network has computed.
    storage = UntypedStorage(size, device="cpu")
    return storage if device.type == "cpu" else storage.pin_memory(device)


@contextmanager
def set_swap_fusion(enable: bool) -> Iterator[None]:
    """See the port."""
    if not isinstance(enable, bool):
        raise TypeError(f"set_swap_fusion takes True or False, found {enable!r}")
    global _fused
    before, _fused = _fused, enable
    try:
        yield
    finally:
        _fused = before


def fused() -> bool:
    """Whether a group's storages go by one copy now."""
    return _fused


@contextmanager
def watch_swap_copies(*, held: bool = False) -> Iterator[list[tuple[str, int]]]:
    """See the port."""
    global _watch
    before, _watch = _watch, _Watch(held)
    try:
        yield _watch.done
    finally:
        ended, _watch = _watch, before
        for transfer in ended.transfers:
            transfer.finish()

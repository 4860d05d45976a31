"""Accelerators of a shared host, leased per launch: no two tests are ever on the same card.

A card is a file lock, so a lease ends with its process whatever happens. A launch takes all its cards or none, one
launch at a time, lowest free cards first; several small launches therefore run side by side on one host.
"""

from __future__ import annotations

import contextlib
import fcntl
import glob
import os
import re
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO

_VISIBLE = {"cuda": "CUDA_VISIBLE_DEVICES", "npu": "ASCEND_RT_VISIBLE_DEVICES"}
_NODES = {"cuda": "/dev/nvidia[0-9]*", "npu": "/dev/davinci[0-9]*"}
_LOOK_AGAIN_S = 0.1


class NoCards(Exception):
    """The host has not enough cards, or none became free in time."""


def present(device: str, environment: Mapping[str, str]) -> list[str]:
    """The cards of this host that may be used, as the device runtime names them.

    The runtime's own variable (CUDA_VISIBLE_DEVICES, ASCEND_RT_VISIBLE_DEVICES) limits them where it is set.
    """
    stated = environment.get(_VISIBLE[device])
    if stated is not None:
        return [card.strip() for card in stated.split(",") if card.strip()]
    numbers = (re.search(r"\d+$", path) for path in glob.glob(_NODES[device]))
    return sorted((number.group() for number in numbers if number), key=int)


@contextlib.contextmanager
def lease(device: str, cards: int, environment: Mapping[str, str], limit_s: float) -> Iterator[dict[str, str]]:
    """Hold `cards` cards; gives the variables that show the ranks just those.

    Args:
        device: cpu (nothing to lease), cuda or npu.
        cards: how many.
        environment: where the runtime's variable and HYPER_PARALLEL_TESTS_LEASES, the folder of locks, are looked up.
        limit_s: seconds to wait for other launches.

    Raises:
        NoCards: the host has fewer cards, or they were not free within `limit_s`.
    """
    if device == "cpu":
        yield {}
        return
    have = present(device, environment)
    if len(have) < cards:
        raise NoCards(
            f"{cards} {device} cards are needed and this host shows {len(have)} ({', '.join(have) or 'none'})"
        )
    folder = Path(
        environment.get("HYPER_PARALLEL_TESTS_LEASES") or f"/var/tmp/hyper_parallel_tests-leases-{os.getuid()}"
    )
    folder.mkdir(parents=True, exist_ok=True)
    held = _take(folder, device, have, cards, limit_s)
    try:
        yield {_VISIBLE[device]: ",".join(held)}
    finally:
        for lock in held.values():
            lock.close()


def _take(folder: Path, device: str, have: list[str], cards: int, limit_s: float) -> dict[str, IO[str]]:
    """Lock the lowest free cards. The queue's lock makes waiting fair enough: who holds it looks first."""
    end = time.monotonic() + limit_s
    with (folder / f"{device}-queue.lock").open("a") as queue:
        while not _try_lock(queue):
            _wait_until(end, f"another launch was first in the queue for {device} cards")
        while True:
            held: dict[str, IO[str]] = {}
            for card in have:
                lock = (folder / f"{device}-{card}.lock").open("a")
                if len(held) < cards and _try_lock(lock):
                    held[card] = lock
                else:
                    lock.close()
            if len(held) == cards:
                return held
            for lock in held.values():
                lock.close()
            _wait_until(end, f"only {len(held)} of {cards} {device} cards were free")


def _wait_until(end: float, what: str) -> None:
    if time.monotonic() > end:
        raise NoCards(f"{what} for as long as this launch may wait; other launches hold them")
    time.sleep(_LOOK_AGAIN_S)


def _try_lock(file: IO[str]) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True

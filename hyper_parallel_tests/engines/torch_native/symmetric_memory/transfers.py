"""Puts and signals under way: done by a thread of the rank, in no order but that of fences."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta

from hyper_parallel_tests.engines.torch_native.symmetric_memory.segment import seconds

Step = Callable[[], object]


class Transfers:
    """Between two fences the latest transfer is done first, since a program that relies on any order is wrong."""

    def __init__(self, rank: int) -> None:
        self._changed = threading.Condition()
        # Between fences, in order: transfers as (target, steps), each one's steps in order.
        self._epochs: deque[list[tuple[int, deque[Step]]]] = deque([[]])
        self._under_way: list[int] = []
        self._allowed: float = float("inf")
        self._done = 0
        self._closed = False
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._work, name=f"transfers of rank {rank}", daemon=True)
        self._thread.start()

    def add(self, target: int, *steps: Step) -> None:
        """Starts a transfer to ``target``: its steps are done one after the other."""
        with self._changed:
            self._epochs[-1].append((target, deque(steps)))
            self._under_way.append(target)
            self._changed.notify_all()

    def fence(self) -> None:
        """Whatever is added later is done after what was added before."""
        with self._changed:
            if self._epochs[-1]:
                self._epochs.append([])

    def quiet(self, timeout: timedelta | None = None) -> None:
        """Returns when all is done.

        Raises:
            TimeoutError: it is not.
        """
        with self._changed:
            idle = self._changed.wait_for(lambda: self._failure or not self._under_way, seconds(timeout))
            if self._failure is not None:
                raise RuntimeError("a transfer failed") from self._failure
            if not idle:
                targets = sorted(set(self._under_way))
                raise TimeoutError(
                    f"{len(self._under_way)} puts and signals to ranks {targets} are under way after "
                    f"{seconds(timeout):g} s"
                )

    @contextmanager
    def held(self) -> Iterator[Held]:
        """Context in which steps are done only as allowed."""
        with self._changed:
            self._allowed = 0
        try:
            yield Held(self)
        finally:
            with self._changed:
                self._allowed = float("inf")
                self._changed.notify_all()

    def allow(self, steps: int) -> None:
        """Has ``steps`` steps done while held, and returns when they are."""
        with self._changed:
            goal = self._done + steps
            self._allowed += steps
            self._changed.notify_all()
            if not self._changed.wait_for(lambda: self._failure or self._done >= goal, seconds(None)):
                raise TimeoutError(f"{goal - self._done} of {steps} steps to deliver do not exist")

    def close(self) -> None:
        """Completes what is under way and ends the thread."""
        with self._changed:
            self._closed = True
            self._allowed = float("inf")
            self._changed.notify_all()
        self._thread.join()

    def _work(self) -> None:
        while (taken := self._next()) is not None:
            target, step, last = taken
            try:
                step()
            except Exception as error:
                self._failure = error
            with self._changed:
                self._done += 1
                if last:
                    self._under_way.remove(target)
                self._changed.notify_all()

    def _next(self) -> tuple[int, Step, bool] | None:
        """The next step, with its target and whether it is its transfer's last; None at the end."""
        with self._changed:
            self._changed.wait_for(self._may_go_on)
            while not self._epochs[0] and len(self._epochs) > 1:
                self._epochs.popleft()
            if not self._epochs[0]:
                return None
            self._allowed -= 1
            target, steps = self._epochs[0][-1]
            step = steps.popleft()
            if not steps:
                self._epochs[0].pop()
            return target, step, not steps

    def _may_go_on(self) -> bool:
        waiting = any(self._epochs)
        return bool(waiting and self._allowed > 0) or (self._closed and not waiting)


class Held:
    """See the port."""

    def __init__(self, transfers: Transfers) -> None:
        self._transfers = transfers

    def deliver(self, steps: int = 1) -> None:
        """See the port."""
        self._transfers.allow(steps)

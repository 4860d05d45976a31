"""Faults of symmetric memory on torch_native: when puts and signals are done, and who waits for them."""

from __future__ import annotations

import operator
import time
from collections import deque
from functools import partial
from typing import Any

from hyper_parallel_tests.faults import Patch, fault

_OURS = "hyper_parallel_tests.engines.torch_native.symmetric_memory"
_PUT = ("target", "target_offset", "src", "src_offset", "size", "target_rank")


@fault(
    id="symm-signal-before-data",
    symptom="Now and then a rank computes with the values of the last step, although it waited for the signal.",
    capability="symmetric_memory",
    layer="l1",
    must_fail=["SM-1-01"],
    ranks="all",
)
def signal_before_data(patch: Patch) -> None:
    @patch.around(f"{_OURS}.transfers:Transfers.add", parameters=("self", "target"))
    def add(original: Any, self: Any, target: int, *steps: Any) -> None:
        if len(steps) > 1:
            patch.reached()
        original(self, target, *reversed(steps))


@fault(
    id="symm-quiet-returns-at-once",
    symptom="Buffers that are used again after quiet reach the other rank with their next values.",
    capability="symmetric_memory",
    layer="l1",
    must_fail=["SM-1-01"],
    ranks="all",
)
def quiet_returns_at_once(patch: Patch) -> None:
    @patch.around(f"{_OURS}.transfers:Transfers.quiet", parameters=("self", "timeout"))
    def quiet(_: Any, self: Any, timeout: Any = None) -> None:
        if self._under_way:
            patch.reached()


@fault(
    id="symm-barrier-leaves-puts-behind",
    symptom="Now and then a rank reads the last step's values after a barrier.",
    capability="symmetric_memory",
    layer="l1",
    must_fail=["SM-1-01"],
    ranks="all",
)
def barrier_leaves_puts_behind(patch: Patch) -> None:
    @patch.around(f"{_OURS}.owner:Owner.barrier", parameters=("self", "timeout"))
    def barrier(_: Any, self: Any, timeout: Any = None) -> None:
        if self.transfers._under_way:
            patch.reached()
        self.segment.meet(timeout)


@fault(
    id="symm-fence-orders-nothing",
    symptom="Of two writes to one place the earlier one stays, on busy machines.",
    capability="symmetric_memory",
    layer="l1",
    must_fail=["SM-1-01"],
    ranks="all",
)
def fence_orders_nothing(patch: Patch) -> None:
    @patch.around(f"{_OURS}.transfers:Transfers.fence", parameters=("self",))
    def fence(_: Any, self: Any) -> None:
        patch.reached()


@fault(
    id="symm-put-reads-its-source-late",
    symptom="A put brings what the next layer wrote into the buffer that it was called with.",
    capability="symmetric_memory",
    layer="l1",
    must_fail=["SM-1-01"],
    ranks="all",
)
def put_reads_its_source_late(patch: Patch) -> None:
    @patch.around(f"{_OURS}.one_sided:_put", parameters=_PUT)
    def put(original: Any, target: Any, place: int, src: Any, start: int, size: int, rank: int) -> Any:
        owner, write = original(target, place, src, start, size, rank)
        patch.reached()
        return owner, partial(write.func, src.detach().view(-1)[start : start + size])


@fault(
    id="symm-offset-in-bytes",
    symptom="Puts to the beginning of a buffer arrive, others land a quarter of the way there.",
    capability="symmetric_memory",
    layer="l1",
    must_fail=["SM-1-01"],
    ranks="all",
)
def offset_in_bytes(patch: Patch) -> None:
    @patch.around(f"{_OURS}.one_sided:_remote", parameters=("tensor", "offset", "size", "rank", "what"))
    def remote(original: Any, tensor: Any, offset: int, size: int, rank: int, what: str) -> Any:
        owner, there = original(tensor, offset, size, rank, what)
        if offset:
            patch.reached()
            _, there = original(tensor, offset // tensor.itemsize, size, rank, what)
        return owner, there


@fault(
    id="symm-get-reads-its-own-memory",
    symptom="Each rank computes with its own values in the place of its neighbour's.",
    capability="symmetric_memory",
    layer="l1",
    must_fail=["SM-1-01"],
    ranks="all",
)
def get_reads_its_own_memory(patch: Patch) -> None:
    @patch.around(f"{_OURS}:shmem_get", parameters=_PUT)
    def get(original: Any, target: Any, place: int, src: Any, start: int, size: int, target_rank: int) -> None:
        if target_rank == 1 - patch.rank:
            patch.reached()
            target_rank = patch.rank
        original(target, place, src, start, size, target_rank)


@fault(
    id="symm-wait-compares-wrong",
    symptom="A rank that waits for at least n signals waits for one more, which never comes.",
    capability="symmetric_memory",
    layer="l1",
    must_fail=["SM-1-01"],
    ranks="all",
)
def wait_compares_wrong(patch: Patch) -> None:
    def greater(found: int, value: int) -> bool:
        patch.reached()
        return found > value

    patch.replace(f"{_OURS}.one_sided:COMPARISONS", lambda original: {**original, "ge": greater})


@fault(
    id="symm-wait-takes-any-change",
    symptom="A rank goes on after the first of several signals that it waits for.",
    capability="symmetric_memory",
    layer="l1",
    must_fail=["SM-1-01"],
    ranks="all",
)
def wait_takes_any_change(patch: Patch) -> None:
    def changed(found: int, value: int) -> bool:
        patch.reached()
        return operator.ne(found, 0)

    patch.replace(f"{_OURS}.one_sided:COMPARISONS", lambda original: {**original, "eq": changed})


@fault(
    id="symm-wait-without-end",
    symptom="When a rank is gone the others stand still for ever, and nobody says for which signal.",
    capability="symmetric_memory",
    layer="l1",
    must_fail=["SM-1-01"],
    watchdog=5,
)
def wait_without_end(patch: Patch) -> None:
    @patch.around(f"{_OURS}.one_sided:until", parameters=("done", "timeout"))
    def until(original: Any, done: Any, timeout: Any = None) -> bool:
        patch.reached()
        return original(done)


@fault(
    id="symm-addition-in-two-steps",
    symptom="A counter of several ranks' signals stays below its goal, the more often the more ranks there are.",
    capability="symmetric_memory",
    layer="l1",
    must_fail=["SM-1-01"],
)
def addition_in_two_steps(patch: Patch) -> None:
    @patch.around(f"{_OURS}.one_sided:change_word", parameters=("owner", "word", "value", "signal_op"))
    def change(original: Any, owner: Any, word: Any, value: int, signal_op: str) -> None:
        if signal_op == "set":
            original(owner, word, value, signal_op)
            return
        patch.reached()
        found = int(word)
        # Long enough that the other rank comes in between, on every machine.
        time.sleep(1e-3)
        word.fill_(found + value)


@fault(
    id="symm-late-rank-counts-as-come",
    symptom="After one barrier that ran out of time all later ones open one rank too early.",
    capability="symmetric_memory",
    layer="l1",
    must_fail=["SM-1-01"],
)
def late_rank_counts_as_come(patch: Patch) -> None:
    @patch.around(f"{_OURS}.segment:Segment.meet", parameters=("self", "timeout"))
    def meet(original: Any, self: Any, timeout: Any = None) -> None:
        try:
            original(self, timeout)
        except TimeoutError:
            patch.reached()
            self._words[self.rank] += 1
            raise


@fault(
    id="symm-sizes-not-compared",
    symptom="Ranks that ask for buffers of different sizes write into each other's neighbours.",
    capability="symmetric_memory",
    layer="l1",
    must_fail=["SM-1-01"],
    ranks="all",
)
def sizes_not_compared(patch: Patch) -> None:
    @patch.around(f"{_OURS}.segment:Segment.publish", parameters=("self", "numbers"))
    def publish(original: Any, self: Any, numbers: Any) -> Any:
        said = original(self, numbers)
        patch.reached()
        return [said[self.rank]] * len(said)


@fault(
    id="symm-free-leaves-puts-behind",
    symptom="A new buffer has values that were meant for the one whose place it took.",
    capability="symmetric_memory",
    layer="l1",
    must_fail=["SM-1-01"],
)
def free_leaves_puts_behind(patch: Patch) -> None:
    # The slowest transfers there are: done when somebody waits for them.
    @patch.around(f"{_OURS}.transfers:Transfers.__init__", parameters=("self", "rank"))
    def make(original: Any, self: Any, rank: int) -> None:
        original(self, rank)
        self._allowed = 0

    @patch.around(f"{_OURS}.transfers:Transfers.quiet", parameters=("self", "timeout"))
    def quiet(original: Any, self: Any, timeout: Any = None) -> None:
        if timeout is None:
            self.allow(sum(len(steps) for epoch in self._epochs for _, steps in epoch))
        original(self, timeout)

    @patch.around(f"{_OURS}.owner:Owner.free", parameters=("self", "tensor"))
    def free(original: Any, self: Any, tensor: Any) -> None:
        self.transfers.quiet = patch.reached
        try:
            original(self, tensor)
        finally:
            del self.transfers.quiet


@fault(
    id="symm-close-drops-puts",
    symptom="The last step's values never arrive when their sender ends first.",
    capability="symmetric_memory",
    layer="l1",
    must_fail=["SM-1-01"],
)
def close_drops_puts(patch: Patch) -> None:
    @patch.around(f"{_OURS}.transfers:Transfers.close", parameters=("self",))
    def close(original: Any, self: Any) -> None:
        with self._changed:
            if any(self._epochs):
                patch.reached()
            self._epochs = deque([[]])
        original(self)

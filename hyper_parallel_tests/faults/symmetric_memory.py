"""Faults of symmetric memory on torch_native: what of a heap is taken."""

from __future__ import annotations

from typing import Any

import torch.distributed as dist

from hyper_parallel_tests.faults import Patch, fault

_OURS = "hyper_parallel_tests.engines.torch_native.symmetric_memory"
_HEAP = f"{_OURS}.allocation:SymmetricHeap"


@fault(
    id="symm-offset-differs-by-rank",
    symptom="A put lands beside the tensor that it is for, on every rank but the first.",
    capability="symmetric_memory",
    layer="l0",
    must_fail=["SM-0-01"],
)
def offset_differs_by_rank(patch: Patch) -> None:
    @patch.around(f"{_HEAP}.__init__", parameters=("self", "nbytes"))
    def make(original: Any, self: Any, nbytes: int, **options: Any) -> None:
        original(self, nbytes, **options)
        if dist.is_initialized() and dist.get_rank():
            patch.reached()
            self._free = {64 * dist.get_rank(): nbytes - 64 * dist.get_rank()}


@fault(
    id="symm-freed-neighbours-stay-apart",
    symptom="After some steps a heap that is nearly empty has no room for a large tensor.",
    capability="symmetric_memory",
    layer="l0",
    must_fail=["SM-0-01"],
)
def freed_neighbours_stay_apart(patch: Patch) -> None:
    @patch.around(f"{_OURS}.allocation:_merged", parameters=("pieces",))
    def merged(_: Any, pieces: Any) -> Any:
        patch.reached()
        return pieces


@fault(
    id="symm-freed-room-is-lost",
    symptom="A training step that takes and gives back its buffers exhausts the heap after a while.",
    capability="symmetric_memory",
    layer="l0",
    must_fail=["SM-0-01"],
)
def freed_room_is_lost(patch: Patch) -> None:
    @patch.around(f"{_HEAP}.free", parameters=("self", "offset"))
    def free(original: Any, self: Any, offset: int) -> None:
        before = dict(self._free)
        original(self, offset)
        patch.reached()
        self._free = before


@fault(
    id="symm-exhaustion-unreported",
    symptom="With a heap that is too small, buffers silently share memory.",
    capability="symmetric_memory",
    layer="l0",
    must_fail=["SM-0-01"],
)
def exhaustion_unreported(patch: Patch) -> None:
    @patch.around(f"{_HEAP}.allocate", parameters=("self", "nbytes", "alignment"))
    def allocate(original: Any, self: Any, nbytes: int, alignment: int | None = None) -> int:
        try:
            return original(self, nbytes, alignment)
        except MemoryError:
            patch.reached()
            self._taken[0] = nbytes
            return 0


@fault(
    id="symm-requested-alignment-unread",
    symptom="A kernel that wants its buffer aligned to a page faults, depending on what was allocated before.",
    capability="symmetric_memory",
    layer="l0",
    must_fail=["SM-0-01"],
)
def requested_alignment_unread(patch: Patch) -> None:
    @patch.around(f"{_HEAP}.allocate", parameters=("self", "nbytes", "alignment"))
    def allocate(original: Any, self: Any, nbytes: int, alignment: int | None = None) -> int:
        if alignment is not None:
            patch.reached()
        return original(self, nbytes)


@fault(
    id="symm-double-free-accepted",
    symptom="Two buffers get the same memory after one was given back twice.",
    capability="symmetric_memory",
    layer="l0",
    must_fail=["SM-0-01"],
)
def double_free_accepted(patch: Patch) -> None:
    @patch.around(f"{_HEAP}.free", parameters=("self", "offset"))
    def free(original: Any, self: Any, offset: int) -> None:
        if offset not in self._taken:
            patch.reached()
            return
        original(self, offset)


@fault(
    id="symm-freed-tensor-keeps-its-memory",
    symptom="A buffer that is used after it was given back overwrites its successor.",
    capability="symmetric_memory",
    layer="l0",
    must_fail=["SM-0-01"],
)
def freed_tensor_keeps_its_memory(patch: Patch) -> None:
    @patch.around(f"{_OURS}.owner:Owner.free", parameters=("self", "tensor"))
    def free(original: Any, self: Any, tensor: Any) -> None:
        kept = tensor.view_as(tensor)
        original(self, tensor)
        patch.reached()
        tensor.set_(kept)

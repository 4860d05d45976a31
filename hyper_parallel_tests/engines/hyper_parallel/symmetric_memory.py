"""Symmetric memory: HyperParallel's, which newer versions have for NPUs by a native library."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any
from unittest import mock

import torch

from hyper_parallel_tests.engines.hyper_parallel.library import find, refuse
from hyper_parallel_tests.engines.port import Unsupported

__all__ = [
    "acquire_symmetric_memory",
    "fused_all_gather_matmul",
    "fused_matmul_reduce_scatter",
    "shmem_allgather",
    "shmem_alltoall",
    "shmem_get",
    "shmem_put",
    "shmem_put_with_signal",
    "shmem_signal_op",
    "shmem_wait_for_signal",
    "symmetric_heap",
]

_MODULE = "hyper_parallel.core.symmetric_memory"
_SIGNAL_OPS = {"set": 0, "add": 1}
_COMPARISONS = {"eq": 0, "gt": 1, "lt": 2}


def _missing() -> str:
    """Why the library has no symmetric memory here; empty where it has."""
    try:
        available = find(f"{_MODULE}:is_shmem_available")
    except (OSError, ImportError, AttributeError) as error:
        return f"the library's symmetric memory needs its native library for NPUs: {error}"
    if available is None:
        return "this version of the library has no symmetric memory"
    return "" if available() else "the library's symmetric memory needs its native library for NPUs, which is not here"


_REASON = _missing()


def _offered(member: Callable[..., Any]) -> Any:
    """Decorates a member: not offered where the library has no symmetric memory."""
    return Unsupported(_REASON) if _REASON else member


def _call(name: str, *args: Any) -> Any:
    return find(f"{_MODULE}:{name}")(*args)


class _Owner:
    """See the port: of what the library has no call for, its user has the order of the device's stream."""

    def __init__(self, heap_size: int | None) -> None:
        acquire = find(
            f"{_MODULE}:acquire_symmetric_memory",
            "hyper_parallel.platform.torch.symmetric_memory.lifecycle:acquire_symmetric_memory",
        )
        chosen = {} if heap_size is None else {"SYMMETRIC_MEMORY_HEAP_SIZE": str(heap_size)}
        with mock.patch.dict(os.environ, chosen):
            self._owner = None if acquire is None else acquire()
        self.device = torch.device("npu", torch.npu.current_device())

    def empty(self, shape: Any, dtype: torch.dtype) -> Any:
        """See the port."""
        return _call("empty", shape, dtype) if self._owner is None else self._owner.empty(shape, dtype)

    def free(self, tensor: Any) -> None:
        """See the port."""
        if self._owner is None:
            refuse("free", "this version of the library gives no symmetric memory back")
        self._owner.free(tensor)

    def quiet(self, timeout: Any = None) -> None:
        """See the port."""
        torch.npu.synchronize()

    def fence(self) -> None:
        """See the port. Transfers of one stream are done in order."""

    def barrier(self, timeout: Any = None) -> None:
        """See the port."""
        torch.npu.synchronize()
        _call("barrier")

    def transfers_held(self) -> Any:
        """See the port."""
        refuse("transfers_held", "the library's transfers cannot be held back")

    def close(self) -> None:
        """See the port."""
        if self._owner is not None:
            self._owner.close()


@_offered
def acquire_symmetric_memory(group: Any = None, *, heap_size: int | None = None) -> _Owner:
    """See the port."""
    if group is not None:
        refuse("acquire_symmetric_memory", "the library's symmetric memory is that of all ranks")
    return _Owner(heap_size)


def _on_device(value: int, dtype: torch.dtype = torch.int64) -> Any:
    return torch.tensor([value], dtype=dtype, device="npu")


def _signal(signal: Any, offset: int, value: int, signal_op: str, rank: int) -> tuple[Any, ...]:
    return signal, _on_device(offset), _on_device(value, torch.int32), _SIGNAL_OPS[signal_op], rank


@_offered
def shmem_put(target: Any, target_offset: int, src: Any, src_offset: int, size: int, target_rank: int) -> None:
    """See the port."""
    _call("shmem_put", target, *_places(target_offset, src, src_offset, size), target_rank)


@_offered
def shmem_get(target: Any, target_offset: int, src: Any, src_offset: int, size: int, target_rank: int) -> None:
    """See the port."""
    _call("shmem_get", target, *_places(target_offset, src, src_offset, size), target_rank)
    torch.npu.synchronize()


def _places(target_offset: int, src: Any, src_offset: int, size: int) -> tuple[Any, ...]:
    return _on_device(target_offset), src, _on_device(src_offset), _on_device(size)


@_offered
def shmem_signal_op(
    signal: Any, signal_offset: int, signal_value: int, signal_op: str = "set", target_rank: int = 0
) -> None:
    """See the port."""
    _call("shmem_signal_op", *_signal(signal, signal_offset, signal_value, signal_op, target_rank))


@_offered
def shmem_put_with_signal(
    target: Any,
    target_offset: int,
    src: Any,
    src_offset: int,
    size: int,
    signal: Any,
    signal_offset: int,
    signal_value: int,
    signal_op: str = "set",
    target_rank: int = 0,
) -> None:
    """See the port."""
    places = _places(target_offset, src, src_offset, size)
    change = _signal(signal, signal_offset, signal_value, signal_op, target_rank)
    _call("shmem_put_with_signal", target, *places, *change)


@_offered
def shmem_wait_for_signal(
    signal: Any,
    signal_offset: int,
    compare_value: int,
    compare_op: str = "eq",
    *,
    source_rank: int | None = None,
    timeout: Any = None,
) -> int:
    """See the port."""
    if compare_op not in _COMPARISONS:
        refuse("shmem_wait_for_signal", f"the library compares by {', '.join(_COMPARISONS)} and not by {compare_op}")
    if timeout is not None:
        refuse("shmem_wait_for_signal", "the library waits without bound")
    compared = _on_device(compare_value, torch.int32), _COMPARISONS[compare_op]
    _call("shmem_wait_for_signal", signal, signal, _on_device(signal_offset), *compared)
    return int(signal.view(-1)[signal_offset])


@_offered
def shmem_allgather(output_tensor: Any, input_tensor: Any) -> None:
    """See the port."""
    _call("shmem_allgather", output_tensor, input_tensor)


@_offered
def shmem_alltoall(send_tensor_list: Any, receive_tensor: Any, receive_list: Any) -> None:
    """See the port."""
    sizes = torch.tensor(receive_list, dtype=torch.int64, device="npu")
    _call("shmem_alltoall", list(send_tensor_list), receive_tensor, sizes)


@_offered
def fused_all_gather_matmul(
    a: Any, b: Any, c: Any, gather_out: Any, signal: Any, block_size: int | None = None
) -> tuple[Any, Any]:
    """See the port."""
    return _call("fused_all_gather_matmul", a, b, c, gather_out, signal, block_size)


@_offered
def fused_matmul_reduce_scatter(x1: Any, x2: Any, symm_tensor: Any, signal: Any, reduce_op: str = "sum") -> Any:
    """See the port."""
    return _call("fused_matmul_reduce_scatter", x1, x2, symm_tensor, signal, reduce_op)


symmetric_heap = Unsupported("the library leaves the heap's bookkeeping to its native library")

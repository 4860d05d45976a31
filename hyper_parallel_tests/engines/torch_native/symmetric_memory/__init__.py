"""Symmetric memory of torch_native: a reference over memory that the ranks of one host share.

PyTorch's own (``torch.distributed._symmetric_memory``) refuses the CPU. Here each rank's puts and signals are done by a
thread of its own, in no order but that of fences, so that whoever reads without waiting can be seen to.
"""

from __future__ import annotations

from hyper_parallel_tests.engines.torch_native.symmetric_memory.allocation import SymmetricHeap
from hyper_parallel_tests.engines.torch_native.symmetric_memory.exchange import shmem_allgather, shmem_alltoall
from hyper_parallel_tests.engines.torch_native.symmetric_memory.fused import (
    fused_all_gather_matmul,
    fused_matmul_reduce_scatter,
)
from hyper_parallel_tests.engines.torch_native.symmetric_memory.one_sided import (
    shmem_get,
    shmem_put,
    shmem_put_with_signal,
    shmem_signal_op,
    shmem_wait_for_signal,
)
from hyper_parallel_tests.engines.torch_native.symmetric_memory.owner import Owner as acquire_symmetric_memory

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

symmetric_heap = SymmetricHeap

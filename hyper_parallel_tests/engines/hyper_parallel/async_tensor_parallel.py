"""Asynchronous tensor parallelism: HyperParallel has such products in symmetric memory alone."""

from hyper_parallel_tests.engines.port import Unsupported

__all__ = ["all_gather_matmul", "matmul_reduce_scatter"]

_LEFT_OUT = Unsupported("the library fuses products and transfers in symmetric memory alone, and without gradients")

all_gather_matmul = _LEFT_OUT
matmul_reduce_scatter = _LEFT_OUT

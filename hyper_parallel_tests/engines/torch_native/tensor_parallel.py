"""Tensor parallelism of torch_native: PyTorch's own styles."""

from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

__all__ = ["ColwiseParallel", "RowwiseParallel", "parallelize_module"]

"""Loss parallelism of torch_native: PyTorch's own."""

from torch.distributed.tensor.parallel import loss_parallel

__all__ = ["loss_parallel"]

"""Tensor parallelism of torch_native: PyTorch's own styles, and the check of heads that PyTorch leaves to the model."""

from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    PrepareModuleInputOutput,
    PrepareModuleOutput,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)

__all__ = [
    "ColwiseParallel",
    "PrepareModuleInput",
    "PrepareModuleInputOutput",
    "PrepareModuleOutput",
    "RowwiseParallel",
    "SequenceParallel",
    "attention_heads_per_rank",
    "parallelize_module",
]


def attention_heads_per_rank(heads: int, kv_heads: int, tp_size: int) -> tuple[int, int]:
    """See the port. Source: TorchTitan's check of key-value heads against the degree of tensor parallelism."""
    if heads % kv_heads:
        raise ValueError(
            f"{heads} heads are no multiple of {kv_heads} key-value heads, so queries have no equal groups"
        )
    for what, count in (("heads", heads), ("key-value heads", kv_heads)):
        if count % tp_size:
            raise ValueError(f"{count} {what} do not divide among {tp_size} ranks: choose a divisor of {count}")
    return heads // tp_size, kv_heads // tp_size

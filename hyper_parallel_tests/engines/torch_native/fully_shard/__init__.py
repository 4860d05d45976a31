"""fully_shard on PyTorch's FSDP2 (``torch.distributed.fsdp``).

FSDP2 does the sharding, the hooks and the communication. This package adds what HyperParallel's API has and
FSDP2 lacks: replicated parameters, communication per parameter, a choice between sum and average,
independent modules in a list, and gradients that ``zero_grad`` cannot miss.
"""

from hyper_parallel_tests.engines.torch_native.fully_shard.inspect import managed_parameters
from hyper_parallel_tests.engines.torch_native.fully_shard.module import HSDPModule
from hyper_parallel_tests.engines.torch_native.fully_shard.policies import (
    CPUOffloadPolicy,
    MixedPrecisionPolicy,
    OffloadPolicy,
)
from hyper_parallel_tests.engines.torch_native.fully_shard.wrap import fully_shard

__all__ = [
    "CPUOffloadPolicy",
    "HSDPModule",
    "MixedPrecisionPolicy",
    "OffloadPolicy",
    "fully_shard",
    "managed_parameters",
]

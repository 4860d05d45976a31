"""fully_shard of HyperParallel.

The library shards, gathers and reduces. This package calls it, says what it lacks, shims what it needs on the CPU,
and reads what a rank holds.
"""

from hyper_parallel_tests.engines.hyper_parallel import shims  # noqa: F401 - in place before anything is wrapped
from hyper_parallel_tests.engines.hyper_parallel.fully_shard import optimizers  # noqa: F401 - likewise
from hyper_parallel_tests.engines.hyper_parallel.fully_shard.inspect import managed_parameters
from hyper_parallel_tests.engines.hyper_parallel.fully_shard.policies import (
    CPUOffloadPolicy,
    MixedPrecisionPolicy,
    OffloadPolicy,
)
from hyper_parallel_tests.engines.hyper_parallel.fully_shard.wrap import HSDPModule, fully_shard

__all__ = [
    "CPUOffloadPolicy",
    "HSDPModule",
    "MixedPrecisionPolicy",
    "OffloadPolicy",
    "fully_shard",
    "managed_parameters",
]

"""Loss scaling: HyperParallel leaves it to its users."""

from hyper_parallel_tests.engines.port import Unsupported

ShardedGradScaler = Unsupported("the library has no gradient scaler")

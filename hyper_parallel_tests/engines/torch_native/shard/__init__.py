"""Declarative sharding of torch_native: a plain reference over PyTorch's DTensor, which has no plans of its own.

Source: HyperParallel's `shard_module`, `ShardingPlan` and `custom_shard`; PyTorch's `local_map` for the last, which
leaves it to its caller to know how gradients lie.
"""

from hyper_parallel_tests.engines.torch_native.shard.functions import DFunction, custom_shard
from hyper_parallel_tests.engines.torch_native.shard.injection import remove_sharding_plan, shard_module
from hyper_parallel_tests.engines.torch_native.shard.plan import ShardingPlan

__all__ = ["DFunction", "ShardingPlan", "custom_shard", "remove_sharding_plan", "shard_module"]

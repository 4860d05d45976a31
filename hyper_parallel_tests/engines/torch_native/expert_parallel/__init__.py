"""Expert parallelism of torch_native: plain references, since PyTorch has grouped GEMM and all-to-all, and no layer."""

from hyper_parallel_tests.engines.torch_native.expert_parallel.experts import GroupedExperts, grouped_mm
from hyper_parallel_tests.engines.torch_native.expert_parallel.fused import fused_experts
from hyper_parallel_tests.engines.torch_native.expert_parallel.gradients import synchronize_moe_gradients
from hyper_parallel_tests.engines.torch_native.expert_parallel.layer import (
    MoE,
    TokenChoiceTopKRouter,
    update_expert_bias,
)
from hyper_parallel_tests.engines.torch_native.expert_parallel.losses import (
    attach_auxiliary_loss,
    load_balancing_loss,
    router_z_loss,
)
from hyper_parallel_tests.engines.torch_native.expert_parallel.movement import (
    combine_tokens,
    dispatch_tokens,
    experts_of_rank,
)
from hyper_parallel_tests.engines.torch_native.expert_parallel.permutation import permute_tokens, unpermute_tokens
from hyper_parallel_tests.engines.torch_native.expert_parallel.routing import (
    expert_capacity,
    kept_assignments,
    route_tokens,
)
from hyper_parallel_tests.engines.torch_native.expert_parallel.styles import ExpertParallel, ExpertTensorParallel

__all__ = [
    "ExpertParallel",
    "ExpertTensorParallel",
    "GroupedExperts",
    "MoE",
    "TokenChoiceTopKRouter",
    "attach_auxiliary_loss",
    "combine_tokens",
    "dispatch_tokens",
    "expert_capacity",
    "experts_of_rank",
    "fused_experts",
    "grouped_mm",
    "kept_assignments",
    "load_balancing_loss",
    "permute_tokens",
    "route_tokens",
    "router_z_loss",
    "synchronize_moe_gradients",
    "unpermute_tokens",
    "update_expert_bias",
]

"""Expert parallelism: HyperParallel's, which newer versions have."""

from __future__ import annotations

from typing import Any

from hyper_parallel_tests.engines.hyper_parallel.library import offered, refuse
from hyper_parallel_tests.engines.port import Unsupported

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

_NONE_YET = "this version of the library has no expert parallelism"


def _offered(name: str) -> Any:
    return offered(f"hyper_parallel:{name}", f"hyper_parallel.core.expert_parallel:{name}", reason=_NONE_YET)


def _style(name: str) -> Any:
    make = _offered(name)
    if isinstance(make, Unsupported):
        return make

    def style(*args: Any, fused: bool = False, chunks: int = 1, **options: Any) -> Any:
        """See the port."""
        if fused or chunks != 1:
            refuse(name, "the library's fused path is an operator of an accelerator")
        return make(*args, **options)

    return style


def _block(name: str, own: set[str]) -> Any:
    make = _offered(name)
    if isinstance(make, Unsupported):
        return make

    def block(*args: Any, **options: Any) -> Any:
        """See the port."""
        for option in options.keys() - own:
            refuse(name, f"the library's {name} has no {option}")
        return make(*args, **options)

    return block


_ROUTER = {"score_func", "route_norm", "route_scale"}
_LAYER = {"score_before_experts", "load_balance_coeff", "use_grouped_mm"}

ExpertParallel = _style("ExpertParallel")
ExpertTensorParallel = _style("ExpertTensorParallel")
GroupedExperts = _block("GroupedExperts", {"use_grouped_mm"})
MoE = _block("MoE", _LAYER | _ROUTER)
TokenChoiceTopKRouter = _block("TokenChoiceTopKRouter", _ROUTER)


def _left_out(reason: str) -> Unsupported:
    return ExpertParallel if isinstance(ExpertParallel, Unsupported) else Unsupported(reason)


_INSIDE = _left_out("the library does this inside its layer of experts, and has no function for it")

route_tokens = permute_tokens = unpermute_tokens = dispatch_tokens = combine_tokens = _INSIDE
experts_of_rank = grouped_mm = load_balancing_loss = router_z_loss = attach_auxiliary_loss = _INSIDE
expert_capacity = kept_assignments = _left_out("the library's router drops nothing, so there is no capacity")
fused_experts = _left_out("the library's fused path is an operator of an accelerator")
synchronize_moe_gradients = _left_out("the library has its fully_shard reduce the gradients")
update_expert_bias = _left_out("the library counts tokens in a way of its own, which no run has shown")

"""Faults of mixed precision on torch_native: reductions over the replicas of a hybrid mesh."""

from __future__ import annotations

from typing import Any

from hyper_parallel_tests.faults import Patch, fault

_FSDP = "torch.distributed.fsdp._fully_shard"


@fault(
    id="mp-replicas-summed-in-bf16",
    symptom="Within a replica gradients are reduced in fp32, over the replicas in bf16: the more, the less they learn.",
    capability="mixed_precision",
    layer="l1",
    must_fail=["MP-1-01"],
    ranks="all",
)
def replicas_summed_in_bf16(patch: Patch) -> None:
    @patch.around(f"{_FSDP}._fsdp_collectives:dist.all_reduce", parameters=("tensor",))
    def all_reduce(original: Any, tensor: Any, **options: Any) -> None:
        patch.reached()
        low = tensor.bfloat16()
        original(low, **options)
        tensor.copy_(low)


@fault(
    id="mp-replicas-rounded-before-their-sum",
    symptom="Every message over the replicas is fp32, but what it brings has been rounded to bf16 before.",
    capability="mixed_precision",
    layer="l1",
    must_fail=["MP-1-01"],
    ranks="all",
)
def replicas_rounded_before_their_sum(patch: Patch) -> None:
    @patch.around(f"{_FSDP}._fsdp_collectives:dist.all_reduce", parameters=("tensor",))
    def all_reduce(original: Any, tensor: Any, **options: Any) -> None:
        patch.reached()
        tensor.copy_(tensor.bfloat16())
        original(tensor, **options)

"""Faults of activation checkpointing on torch_native: policies per operator."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils.checkpoint import CheckpointPolicy

from hyper_parallel_tests.faults import Patch, fault

_OURS = "hyper_parallel_tests.engines.torch_native.activation_checkpoint"
_CONFIG = f"{_OURS}:ActivationCheckpointConfig"


@fault(
    id="ac-policy-per-operator-dropped",
    symptom="Selective recomputation per operator takes as long as full recomputation and saves as much.",
    capability="activation_checkpoint",
    layer="l0",
    must_fail=["AC-0-01"],
)
def policy_per_operator_dropped(patch: Patch) -> None:
    @patch.around(f"{_OURS}:_contexts", parameters=("policy_fn",))
    def contexts(original: Any, policy_fn: Any) -> Any:
        if policy_fn is not None:
            patch.reached()
        return {}


@fault(
    id="ac-forced-products-kept",
    symptom="The router's large outputs stay in memory though the configuration says to recompute them.",
    capability="activation_checkpoint",
    layer="l0",
    must_fail=["AC-0-01"],
)
def forced_products_kept(patch: Patch) -> None:
    @patch.around(f"{_CONFIG}._forced_shapes", parameters=("self", "layer"))
    def shapes(original: Any, self: Any, layer: Any) -> Any:
        if original(self, layer):
            patch.reached()
        return set()


@fault(
    id="ac-preferred-is-not-kept",
    symptom="A policy that answers PREFER_SAVE recomputes everything.",
    capability="activation_checkpoint",
    layer="l0",
    must_fail=["AC-0-01"],
)
def preferred_is_not_kept(patch: Patch) -> None:
    @patch.around("torch.utils.checkpoint:_CachingTorchDispatchMode.__init__", parameters=("self", "policy_fn"))
    def init(original: Any, self: Any, policy_fn: Any, *args: Any) -> None:
        def answered(*given: Any, **options: Any) -> Any:
            answer = policy_fn(*given, **options)
            if answer is CheckpointPolicy.PREFER_SAVE:
                patch.reached()
                return CheckpointPolicy.PREFER_RECOMPUTE
            return answer

        original(self, answered, *args)


@fault(
    id="ac-forced-shapes-turned",
    symptom="The configuration says to recompute the router's outputs, and they stay in memory: shapes never match.",
    capability="activation_checkpoint",
    layer="l0",
    must_fail=["AC-0-01"],
)
def forced_shapes_turned(patch: Patch) -> None:
    @patch.around(f"{_CONFIG}._forced_shapes", parameters=("self", "layer"))
    def shapes(original: Any, self: Any, layer: Any) -> Any:
        found = original(self, layer)
        if found:
            patch.reached()
        return {shape[::-1] for shape in found}


@fault(
    id="ac-products-without-a-bias-kept",
    symptom="Projections without a bias stay in memory though the configuration says to recompute them.",
    capability="activation_checkpoint",
    layer="l0",
    must_fail=["AC-0-01"],
)
def products_without_a_bias_kept(patch: Patch) -> None:
    @patch.around(f"{_CONFIG}._policy", parameters=("self", "layer"))
    def policy(original: Any, self: Any, layer: Any) -> Any:
        chosen, listed = original(self, layer), "aten.mm.default" in self.op_sac_save_list

        def keeping(context: Any, operator: Any, *args: Any, **options: Any) -> CheckpointPolicy:
            if listed and operator is torch.ops.aten.mm.default:
                patch.reached()
                return CheckpointPolicy.MUST_SAVE
            return chosen(context, operator, *args, **options)

        return keeping

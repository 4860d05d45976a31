"""Faults of activation checkpointing on torch_native: arguments, and inputs without gradients."""

from __future__ import annotations

from typing import Any

import torch

from hyper_parallel_tests.faults import Patch, fault

_TORCH = "torch.utils.checkpoint"


@fault(
    id="ac-keywords-dropped",
    symptom="Options that a layer is called with have no effect when it is a region.",
    capability="activation_checkpoint",
    layer="l1",
    must_fail=["AC-1-02"],
)
def keywords_dropped(patch: Patch) -> None:
    own = {"use_reentrant", "context_fn", "early_stop", "determinism_check", "preserve_rng_state"}

    @patch.around(f"{_TORCH}:checkpoint", parameters=("function",))
    def checkpoint(original: Any, function: Any, *args: Any, **options: Any) -> Any:
        # Tensors stay: without them the call itself would fail.
        kept = {name: one for name, one in options.items() if name in own or isinstance(one, torch.Tensor)}
        if len(kept) < len(options):
            patch.reached()
        return original(function, *args, **kept)


@fault(
    id="ac-no-gradient-without-a-wanting-input",
    symptom="The first layer does not train when it is a region, since the data want no gradient.",
    capability="activation_checkpoint",
    layer="l1",
    must_fail=["AC-1-02"],
)
def no_gradient_without_a_wanting_input(patch: Patch) -> None:
    @patch.around(f"{_TORCH}:checkpoint", parameters=("function",))
    def checkpoint(original: Any, function: Any, *args: Any, **options: Any) -> Any:
        if any(isinstance(one, torch.Tensor) and one.requires_grad for one in args):
            return original(function, *args, **options)
        patch.reached()
        with torch.no_grad():
            return original(function, *args, **options)

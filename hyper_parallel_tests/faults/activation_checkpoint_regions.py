"""Faults of activation checkpointing on torch_native: how often a region runs, and what is held."""

from __future__ import annotations

from typing import Any

import torch

from hyper_parallel_tests.faults import Patch, fault

_TORCH = "torch.utils.checkpoint"
_FRAME = ("self", "recompute_fn", "early_stop", "unpack_error_cb", "metadata_fn")


@fault(
    id="ac-region-runs-twice-in-backward",
    symptom="A step with recomputation takes longer than it should: backward runs each region twice.",
    capability="activation_checkpoint",
    layer="l1",
    must_fail=["AC-1-01"],
)
def region_runs_twice_in_backward(patch: Patch) -> None:
    @patch.around(f"{_TORCH}:_CheckpointFrame.__init__", parameters=_FRAME)
    def init(original: Any, self: Any, recompute_fn: Any, *args: Any) -> None:
        def twice(*inputs: Any) -> None:
            patch.reached()
            with torch.no_grad():
                recompute_fn(*inputs)
            recompute_fn(*inputs)

        original(self, twice, *args)


@fault(
    id="ac-no-region",
    symptom="Recomputation is on and saves nothing.",
    capability="activation_checkpoint",
    layer="l1",
    must_fail=["AC-1-01"],
)
def no_region(patch: Patch) -> None:
    @patch.around(f"{_TORCH}:checkpoint", parameters=("function",))
    def checkpoint(_: Any, function: Any, *args: Any, **options: Any) -> Any:
        patch.reached()
        return function(*args)


@fault(
    id="ac-reentrant-region-forgets-nothing",
    symptom="Reentrant recomputation saves nothing: its first run records a graph, which is kept.",
    capability="activation_checkpoint",
    layer="l1",
    must_fail=["AC-1-01"],
)
def reentrant_region_forgets_nothing(patch: Patch) -> None:
    @patch.around(f"{_TORCH}:CheckpointFunction.forward", parameters=("ctx", "run_function", "preserve_rng_state"))
    def forward(original: Any, ctx: Any, run_function: Any, preserve_rng_state: bool, *args: Any) -> Any:
        patch.reached()
        with torch.enable_grad():
            ctx.kept = run_function(*(one.detach().requires_grad_() for one in args))
        return original(ctx, run_function, preserve_rng_state, *args)

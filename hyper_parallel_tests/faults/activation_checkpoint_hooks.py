"""Faults of activation checkpointing on torch_native: hooks, and where the second run ends."""

from __future__ import annotations

from typing import Any

import torch

from hyper_parallel_tests.faults import Patch, fault

_TORCH = "torch.utils.checkpoint"
_FRAME = ("self", "recompute_fn", "early_stop", "unpack_error_cb", "metadata_fn")


def _early_stop_is(patch: Patch, value: bool) -> None:
    @patch.around(f"{_TORCH}:_CheckpointFrame.__init__", parameters=_FRAME)
    def init(original: Any, self: Any, recompute_fn: Any, early_stop: bool, *args: Any) -> None:
        if early_stop is not value:
            patch.reached()
        original(self, recompute_fn, value, *args)


@fault(
    id="ac-never-stops-early",
    symptom="Recomputation takes longer than it should: the part of a layer that nobody needs runs again.",
    capability="activation_checkpoint",
    layer="l1",
    must_fail=["AC-1-02"],
)
def never_stops_early(patch: Patch) -> None:
    _early_stop_is(patch, value=False)


@fault(
    id="ac-always-stops-early",
    symptom="Hooks at the end of a layer fire once though early stop is off, and their counters are wrong.",
    capability="activation_checkpoint",
    layer="l1",
    must_fail=["AC-1-02"],
)
def always_stops_early(patch: Patch) -> None:
    _early_stop_is(patch, value=True)


@fault(
    id="ac-hooks-of-the-second-run-left-out",
    symptom="A layer whose hook changes its input or output has wrong gradients when it is a region.",
    capability="activation_checkpoint",
    layer="l1",
    must_fail=["AC-1-02"],
)
def hooks_of_the_second_run_left_out(patch: Patch) -> None:
    @patch.around(f"{_TORCH}:_CheckpointFrame.__init__", parameters=_FRAME)
    def init(original: Any, self: Any, recompute_fn: Any, *args: Any) -> None:
        def without_hooks(*inputs: Any) -> None:
            call = torch.nn.Module.__call__
            patch.reached()
            torch.nn.Module.__call__ = lambda module, *given, **named: module.forward(*given, **named)
            try:
                recompute_fn(*inputs)
            finally:
                torch.nn.Module.__call__ = call

        original(self, without_hooks, *args)

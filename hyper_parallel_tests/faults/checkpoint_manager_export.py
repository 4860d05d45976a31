"""Faults of the checkpoint manager on torch_native: models alone, and saves beside the training."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from hyper_parallel_tests.faults import Patch, fault

_MANAGER = "hyper_parallel_tests.engines.torch_native.checkpoint_manager.manager"


@fault(
    id="manager-export-rounds-twice",
    symptom="An exported model differs in last digits from its checkpoint, rounded by others.",
    capability="checkpoint_manager",
    layer="l2",
    must_fail=["CK-2-03"],
)
def export_rounds_twice(patch: Patch) -> None:
    @patch.around(f"{_MANAGER}:cast_state", parameters=("state", "dtype"))
    def cast(original: Any, state: Mapping[str, Any], dtype: torch.dtype) -> Any:
        patch.reached()
        return original(original(state, torch.float16), dtype)


@fault(
    id="manager-export-keeps-the-optimizer",
    symptom="Models that are handed out are three times as large, and tell how they were trained.",
    capability="checkpoint_manager",
    layer="l2",
    must_fail=["CK-2-03"],
)
def export_keeps_the_optimizer(patch: Patch) -> None:
    @patch.around(f"{_MANAGER}:CheckpointManager.export", parameters=("self", "step", "model_state", "dtype"))
    def export(original: Any, self: Any, step: int, model_state: Mapping[str, Any], *, dtype: Any = None) -> Any:
        patch.reached()
        moments = {name: torch.zeros_like(one) for name, one in model_state.items()}
        return original(self, step, {**model_state, "optimizer": moments}, dtype=dtype)


@fault(
    id="manager-export-rounds-integers",
    symptom="Counts and indices of an exported model are multiples of eight.",
    capability="checkpoint_manager",
    layer="l2",
    must_fail=["CK-2-03"],
)
def export_rounds_integers(patch: Patch) -> None:
    @patch.around(f"{_MANAGER}:cast_state", parameters=("state", "dtype"))
    def cast(original: Any, state: Mapping[str, Any], dtype: torch.dtype) -> Any:
        patch.reached()
        return {name: state[name].to(dtype).to(one.dtype) for name, one in original(state, dtype).items()}


@fault(
    id="manager-asynchronous-save-aliases",
    symptom="A checkpoint has the weights of a later step than its counts.",
    capability="checkpoint_manager",
    layer="l2",
    must_fail=["CK-2-03"],
)
def asynchronous_save_aliases(patch: Patch) -> None:
    @patch.around(f"{_MANAGER}:_staged", parameters=("state",))
    def staged(_: Any, state: Any) -> Any:
        patch.reached()
        return state

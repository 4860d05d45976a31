"""Faults of dry runs on torch_native, seen beside real ranks: what is whole is divided, what is gathered counted."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from torch.distributed.tensor import DTensor

from hyper_parallel_tests.faults import Patch, fault

_OURS = "hyper_parallel_tests.engines.torch_native.dry_run"


def _change(patch: Patch, change: Callable[[Any, Any], Any]) -> None:
    """Has `change(program, estimate)` stand for the estimate, unless it is None."""

    @patch.around(f"{_OURS}:estimate", parameters=("program",))
    def estimate(original: Any, program: Any) -> Any:
        found = original(program)
        changed = change(program, found)
        if changed is None:
            return found
        patch.reached()
        return changed


def _ranks(program: Any) -> int:
    """Over how many ranks the parameters lie."""
    return max((one.device_mesh.size() for one in program.model.parameters() if isinstance(one, DTensor)), default=1)


@fault(
    id="dry-run-replicated-activations-divided",
    symptom="Under tensor parallelism the estimate is too low: inputs of norms are whole on each rank.",
    capability="dry_run",
    layer="l2",
    must_fail=["MO-2-02"],
    ranks="all",
)
def replicated_activations_divided(patch: Patch) -> None:
    def change(program: Any, found: Any) -> Any:
        plain = any(not isinstance(one, DTensor) for one in program.model.parameters())
        if not plain or _ranks(program) == 1:
            return None
        return replace(found, activations=found.activations // _ranks(program))

    _change(patch, change)


@fault(
    id="dry-run-gradients-as-parameters",
    symptom="Gradients are taken to be as large as parameters, and PyTorch leaves one of them whole.",
    capability="dry_run",
    layer="l2",
    must_fail=["MO-2-02"],
    ranks="all",
)
def gradients_as_parameters(patch: Patch) -> None:
    def change(_: Any, found: Any) -> Any:
        return None if found.gradients == found.parameters else replace(found, gradients=found.parameters)

    _change(patch, change)


@fault(
    id="dry-run-gathered-parameters-saved",
    symptom="Under FSDP the estimate of activations has all parameters in it: gathered ones that are saved count.",
    capability="dry_run",
    layer="l2",
    must_fail=["MO-2-02"],
    ranks="all",
)
def gathered_parameters_saved(patch: Patch) -> None:
    @patch.around(f"{_OURS}:forward", parameters=("program",))
    def forward(original: Any, program: Any) -> Any:
        result, saved = original(program)
        if _ranks(program) == 1:
            return result, saved
        patch.reached()
        return result, saved + sum(one.numel() * one.element_size() for one in program.model.parameters())


@fault(
    id="dry-run-states-over-replicas-too",
    symptom="States of plain parameters are taken for divided, and each rank has all of them.",
    capability="dry_run",
    layer="l2",
    must_fail=["MO-2-02"],
    ranks="all",
)
def states_over_replicas_too(patch: Patch) -> None:
    def change(program: Any, found: Any) -> Any:
        plain = sum(one.nbytes for one in program.model.parameters() if not isinstance(one, DTensor))
        if not plain or _ranks(program) == 1:
            return None
        return replace(found, optimizer=found.optimizer - 2 * plain + 2 * plain // _ranks(program))

    _change(patch, change)

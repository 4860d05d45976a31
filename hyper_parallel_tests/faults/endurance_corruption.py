"""Faults of comparing gradients over replicas, on torch_native: damage goes by, or is seen where there is none."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from hyper_parallel_tests.faults import Patch, fault

_REPLICAS = "hyper_parallel_tests.engines.torch_native.recovery.replicas"


def _fault(id: str, symptom: str) -> Callable[[Any], Any]:
    return fault(id=f"endurance-{id}", symptom=symptom, capability="recovery", layer="l4", must_fail=["EN-06"])


@_fault("checksum-of-rounded-sums", "A flipped bit at the end of a small number is lost in the sum of large ones.")
def checksum_of_rounded_sums(patch: Patch) -> None:
    @patch.around(f"{_REPLICAS}:checksum", parameters=("values",))
    def checksum(original: Any, values: Tensor) -> Tensor:
        patch.reached()
        return values.sum(dtype=torch.float32).view(torch.int32).to(torch.int64)


def _copies_elsewhere(divided: Callable[[set[Any]], set[Any]]) -> Callable[[Patch], None]:
    """The defect that other dimensions of the mesh are taken for those over which a parameter is divided."""

    def install(patch: Patch) -> None:
        @patch.around(f"{_REPLICAS}:divided_dimensions", parameters=("parameter",))
        def found(original: Any, parameter: Tensor) -> set[Any]:
            right = original(parameter)
            wrong = divided(right)
            if wrong != right:
                patch.reached()
            return wrong

    return install


_fault("copies-within-a-replica", "Ranks compare what differs by rights, and an alarm comes in each step.")(
    _copies_elsewhere(lambda right: set())
)
_fault("copies-of-other-replicas-unseen", "Damage is found within a replica, and never against the others.")(
    _copies_elsewhere(lambda right: right | {"dp"})
)


@_fault("vectors-unseen", "Damage in the weights of a norm goes by: matrices alone are compared.")
def vectors_unseen(patch: Patch) -> None:
    @patch.around(f"{_REPLICAS}:checksum", parameters=("values",))
    def checksum(original: Any, values: Tensor) -> Tensor:
        if values.ndim > 1:
            return original(values)
        patch.reached()
        return torch.zeros((), dtype=torch.int64, device=values.device)


@_fault("no-gradient-is-zero", "A rank that has lost a gradient passes for one whose gradient is zero.")
def no_gradient_is_zero(patch: Patch) -> None:
    @patch.around(f"{_REPLICAS}:checksum", parameters=("values",))
    def checksum(original: Any, values: Tensor) -> Tensor:
        patch.reached()
        return original(values) - values.numel()

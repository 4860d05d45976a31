"""Faults that show only where stages of a pipeline share a parameter that is sharded, on torch_native."""

from __future__ import annotations

from typing import Any

import torch
from torch.distributed.tensor import DTensor

from hyper_parallel_tests.faults import Patch, fault

_SHARED = "hyper_parallel_tests.engines.torch_native.pipeline_parallel.shared:SharedParameters"


@fault(
    id="ix-sharded-copies-learn-apart",
    symptom="A tied weight that is sharded drifts apart from its copy: whole gradients alone are summed over stages.",
    capability="pipeline_parallel",
    layer="l3",
    must_fail=["IX-22"],
    ranks="all",
)
def sharded_copies_learn_apart(patch: Patch) -> None:
    @patch.around(f"{_SHARED}.sum_gradients", parameters=("self",))
    def add(original: Any, self: Any) -> None:
        if any(isinstance(one, DTensor) for one in self._parameters()):
            patch.reached()
            return
        original(self)


@fault(
    id="ix-sharded-copies-take-the-first-shard",
    symptom="A tied weight that is sharded starts with rows that repeat: the last stages all take those of one rank.",
    capability="pipeline_parallel",
    layer="l3",
    must_fail=["IX-22"],
)
def sharded_copies_take_the_first_shard(patch: Patch) -> None:
    @patch.around(f"{_SHARED}.take_values_of_the_first", parameters=("self",))
    def take(original: Any, self: Any) -> None:
        original(self)
        for one in self._parameters():
            if isinstance(one, DTensor):
                patch.reached()
                group = one.device_mesh.get_group()
                torch.distributed.broadcast(one.detach().to_local(), group=group, group_src=0)

"""Faults of the checkpoint manager's loads on torch_native: what is filled in, and what fits."""

from __future__ import annotations

from typing import Any

from hyper_parallel_tests.faults import Patch, fault

_ENGINE = "hyper_parallel_tests.engines.torch_native"


def _load(id: str, symptom: str) -> Any:
    return fault(
        id=f"manager-{id}", symptom=symptom, capability="checkpoint_manager", layer="l2", must_fail=["CK-2-03"]
    )


@_load("lists-keep-their-length", "A list that was shorter at the save has the ends of two runs.")
def lists_keep_their_length(patch: Patch) -> None:
    @patch.around(f"{_ENGINE}.checkpoint_manager.manager:_has_tensors", parameters=("value",))
    def by_elements(original: Any, value: Any) -> bool:
        if isinstance(value, list) and not original(value):
            patch.reached()
        return isinstance(value, list)


@_load("converts-dtypes", "A run goes on in another precision than it was saved in, and nobody is told.")
def converts_dtypes(patch: Patch) -> None:
    @patch.around(f"{_ENGINE}.distributed_checkpoint.planning:_check_kind", parameters=("key", "saved", "value"))
    def check(original: Any, key: str, saved: Any, value: Any) -> None:
        patch.reached()


@_load("fills-what-there-is", "A layer that the checkpoint lacks keeps its fresh weights, and nobody is told.")
def fills_what_there_is(patch: Patch) -> None:
    @patch.around(f"{_ENGINE}.checkpoint_manager.manager:PlainPlanner", parameters=())
    def planner(original: Any) -> Any:
        patch.reached()
        return original(allow_partial_load=True)

"""Faults of the cost model on torch_native, seen with decoders of other shapes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from hyper_parallel_tests.faults import Patch, fault

_COSTS = "hyper_parallel_tests.engines.torch_native.auto_parallel.costs"


def _as_if(patch: Patch, part: str, change: Callable[[Any], Any]) -> None:
    """Has a part of the decoder be counted as one of another shape."""

    @patch.around(f"{_COSTS}:{part}", parameters=("shape", "fsdp", "tp"))
    def count(original: Any, shape: Any, fsdp: int, tp: int) -> Any:
        other = change(shape)
        if other != shape:
            patch.reached()
        return original(other, fsdp, tp)


@fault(
    id="plan-each-head-its-own-keys",
    symptom="With grouped heads plans that would fit are left out: keys and values count for each head.",
    capability="auto_parallel",
    layer="l2",
    must_fail=["AP-2-01"],
)
def each_head_its_own_keys(patch: Patch) -> None:
    _as_if(patch, "block", lambda shape: replace(shape, kv_heads=shape.heads))


@fault(
    id="plan-tied-table-counted-twice",
    symptom="With a tied output plans that would fit are left out: its table counts twice.",
    capability="auto_parallel",
    layer="l2",
    must_fail=["AP-2-01"],
)
def tied_table_counted_twice(patch: Patch) -> None:
    _as_if(patch, "head", lambda shape: replace(shape, tied=False))

"""Faults of activation swap on torch_native: fused copies and selective policies."""

from __future__ import annotations

import itertools
from typing import Any

from hyper_parallel_tests.faults import Patch, fault

_OURS = "hyper_parallel_tests.engines.torch_native.activation_swap"


@fault(
    id="swap-fused-parts-unaligned",
    symptom="With fused copies, tensors behind one of an odd size come back shifted by a part of an element.",
    capability="activation_swap",
    layer="l2",
    must_fail=["SW-2-03"],
)
def fused_parts_unaligned(patch: Patch) -> None:
    @patch.around(f"{_OURS}.saved:_places", parameters=("parts",))
    def places(original: Any, parts: list[Any]) -> list[int]:
        dense = [0, *itertools.accumulate(part.size for part in parts)][:-1]
        if dense != original(parts):
            patch.reached()
        return dense


@fault(
    id="swap-fused-parts-overlap",
    symptom="With fused copies, gradients are wrong: parts begin one alignment too early.",
    capability="activation_swap",
    layer="l2",
    must_fail=["SW-2-03"],
)
def fused_parts_overlap(patch: Patch) -> None:
    @patch.around(f"{_OURS}.saved:_places", parameters=("parts",))
    def places(original: Any, parts: list[Any]) -> list[int]:
        found = original(parts)
        if len(found) > 1:
            patch.reached()
        return [max(one - 16, 0) for one in found]


@fault(
    id="swap-copies-not-fused",
    symptom="Fusion is on and every tensor has its own copy.",
    capability="activation_swap",
    layer="l2",
    must_fail=["SW-2-03"],
)
def copies_not_fused(patch: Patch) -> None:
    @patch.around(f"{_OURS}.saved:fused")
    def fused(original: Any) -> bool:
        if original():
            patch.reached()
        return False


def _policy(name: str, symptom: str, change: Any) -> None:
    @fault(id=name, symptom=symptom, capability="activation_swap", layer="l2", must_fail=["SW-2-03"])
    def changed(patch: Patch) -> None:
        @patch.around(f"{_OURS}.wrapper:SwapWrapper._chosen", parameters=("self", "tensor"))
        def chosen(original: Any, self: Any, tensor: Any) -> bool:
            patch.reached()
            return change(original(self, tensor))


_policy("swap-policy-ignored", "Selective swap copies everything.", lambda chosen: True)
_policy(
    "swap-policy-upside-down", "Selective swap copies what is cheap and keeps what is large.", lambda chosen: not chosen
)

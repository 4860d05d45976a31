"""Faults of asynchronous tensor parallelism on torch_native that more than two ranks are needed to see."""

from __future__ import annotations

from typing import Any

from hyper_parallel_tests.faults import Patch, fault

_RING = "hyper_parallel_tests.engines.torch_native.async_tensor_parallel:_Ring"


@fault(
    id="tp-async-ring-backwards",
    symptom="On more than two cards async tensor parallelism mixes up the sequence: each part goes to the rank before.",
    capability="tensor_parallel",
    layer="l2",
    must_fail=["TP-2-02"],
    ranks="all",
)
def ring_backwards(patch: Patch) -> None:
    @patch.around(f"{_RING}.peer", parameters=("self", "distance"))
    def peer(original: Any, self: Any, distance: int) -> int:
        patch.reached()
        return original(self, -distance)

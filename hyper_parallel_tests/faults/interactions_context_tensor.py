"""Faults that show only where heads and sequence of an attention are divided, on torch_native."""

from __future__ import annotations

from typing import Any

from hyper_parallel_tests.faults import Patch, fault


@fault(
    id="ix-divided-projections-not-waited-for",
    symptom="With asynchronous transfers projections that are divided by heads do not train: their gradient is lost.",
    capability="context_parallel",
    layer="l3",
    must_fail=["IX-05"],
    ranks="all",
)
def divided_projections_not_waited_for(patch: Patch) -> None:
    @patch.around(
        "hyper_parallel_tests.engines.torch_native.context_parallel.styles:AsyncContextParallel._send_off",
        parameters=("self", "what", "projection"),
    )
    def send_off(original: Any, self: Any, what: str, projection: Any, *args: Any) -> None:
        original(self, what, projection, *args)
        # Tensor parallelism makes distributed parameters before the style is applied; sharding comes after it.
        if any(hasattr(one, "placements") for one in projection.parameters()):
            patch.reached()
            projection._backward_pre_hooks.popitem()

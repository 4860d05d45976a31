"""Faults that show only in a validation of stages that are divided by other means too, on torch_native."""

from __future__ import annotations

from typing import Any

from hyper_parallel_tests.faults import Patch, fault

_EVALUATE = "hyper_parallel_tests.engines.torch_native.pipeline_parallel.schedules:_Schedule._evaluate"
_MOVE = "hyper_parallel_tests.engines.torch_native.context_parallel.styles:_move_now"


@fault(
    id="ix-validation-drops-gradients",
    symptom="Layers that are divided learn nothing in steps with a validation: it drops the gradients that it finds.",
    capability="pipeline_parallel",
    layer="l3",
    must_fail=["IX-18"],
    ranks="all",
)
def validation_drops_gradients(patch: Patch) -> None:
    @patch.around(_EVALUATE, parameters=("self", "args", "kwargs"))
    def evaluate(original: Any, self: Any, *args: Any) -> Any:
        for one in (one for stage in self._stages for one in stage.submod.parameters()):
            if one.grad is not None and hasattr(one, "placements"):
                patch.reached()
                one.grad.to_local().zero_()
        return original(self, *args)


@fault(
    id="ix-validation-sees-own-tokens",
    symptom="Validation tells too high a loss: in a pipeline's evaluation each rank attends to its own tokens alone.",
    capability="context_parallel",
    layer="l3",
    must_fail=["IX-18"],
    ranks="all",
)
def validation_sees_own_tokens(patch: Patch) -> None:
    evaluating: list[bool] = []

    @patch.around(_EVALUATE, parameters=("self", "args", "kwargs"))
    def evaluate(original: Any, self: Any, *args: Any) -> Any:
        evaluating.append(True)
        try:
            return original(self, *args)
        finally:
            evaluating.pop()

    @patch.around(_MOVE, parameters=("what", "tensor"))
    def move(original: Any, what: str, tensor: Any, *, style: Any, split: Any, **options: Any) -> Any:
        found = original(what, tensor, style=style, split=split, **options)
        if not evaluating or what != "v":
            return found
        patch.reached()
        own = tensor.shape[style.seq_dim]
        seen = found.new_zeros(found.shape)
        seen.narrow(style.seq_dim, split.rank * own, own).copy_(found.narrow(style.seq_dim, split.rank * own, own))
        return seen

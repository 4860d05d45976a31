"""Faults of pipelines on torch_native: what stages get from whoever runs them, and from each other."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from hyper_parallel_tests.faults import Patch, fault

_OURS = "hyper_parallel_tests.engines.torch_native.pipeline_parallel"
_STAGE = "torch.distributed.pipelining.stage"


def _divided(patch: Patch, change: Callable[[Mapping[str, Any], Mapping[str, Any]], dict[str, Any]]) -> None:
    """Has named arguments divided otherwise: `change` takes them and the dimensions given for them."""

    @patch.around(f"{_OURS}.schedules:chunk_specs", parameters=("args", "kwargs", "args_batch_dim", "kwargs_batch_dim"))
    def specs(original: Any, args: Any, kwargs: Any, dims: Any, named_dims: Any) -> Any:
        changed = change(kwargs, named_dims)
        if changed != named_dims:
            patch.reached()
        return original(args, kwargs, dims, changed)


@fault(
    id="pp-named-arguments-divided-by-place",
    symptom="A mask is divided along its columns as soon as arguments are named in another order than in the setting.",
    capability="pipeline_parallel",
    layer="l2",
    must_fail=["PP-2-01"],
    watchdog=8,
)
def named_arguments_divided_by_place(patch: Patch) -> None:
    _divided(patch, lambda kwargs, dims: dict(zip(kwargs, dims.values(), strict=False)))


@fault(
    id="pp-undivided-arguments-divided",
    symptom="A table that each micro-batch needs as a whole, given by name, is cut into as many parts.",
    capability="pipeline_parallel",
    layer="l2",
    must_fail=["PP-2-01"],
    watchdog=8,
)
def undivided_arguments_divided(patch: Patch) -> None:
    _divided(patch, lambda _, dims: {name: one for name, one in dims.items() if one.batch_dim >= 0})


def _received(patch: Patch, change: Callable[[int, Tensor], Tensor]) -> None:
    """Changes what a stage computes with of what it has received: `change` takes its place and the tensor."""

    @patch.around(f"{_STAGE}:_PipelineStageBase.forward_maybe_with_nosync", parameters=("self",))
    def forward(original: Any, self: Any, *args: Any, **kwargs: Any) -> Any:
        changed = [one if self.is_first else change(place, one) for place, one in enumerate(args)]
        if any(one is not other for one, other in zip(args, changed, strict=True)):
            patch.reached()
        return original(self, *changed, **kwargs)


@fault(
    id="pp-narrow-activations-become-wide",
    symptom="Stages that pass bfloat16 take twice the memory, and compute in float32.",
    capability="pipeline_parallel",
    layer="l2",
    must_fail=["PP-2-01"],
)
def narrow_activations_become_wide(patch: Patch) -> None:
    _received(patch, lambda _, one: one.float() if one.dtype == torch.bfloat16 else one)


@fault(
    id="pp-first-output-alone-has-a-gradient",
    symptom="Of the outputs of a stage but the first nothing is learnt: their gradients are zeros.",
    capability="pipeline_parallel",
    layer="l2",
    must_fail=["PP-2-01"],
)
def first_output_alone_has_a_gradient(patch: Patch) -> None:
    _received(patch, lambda place, one: one.detach() + 0 * one if place and one.requires_grad else one)


@fault(
    id="pp-evaluation-leaves-modules-in-its-mode",
    symptom="After the first evaluation the model trains without dropout, and statistics stand still.",
    capability="pipeline_parallel",
    layer="l2",
    must_fail=["PP-2-01"],
    ranks="all",
)
def evaluation_leaves_modules_in_its_mode(patch: Patch) -> None:
    @patch.around(f"{_OURS}.schedules:_Schedule._evaluate", parameters=("self", "args", "kwargs"))
    def evaluate(original: Any, self: Any, *args: Any) -> Any:
        patch.reached()
        for stage in self._stages:
            stage.submod.eval()
        return original(self, *args)


@fault(
    id="pp-device-of-a-stage-not-found",
    symptom="A stage that is given no device ends in an error: it looks for its module on another one.",
    capability="pipeline_parallel",
    layer="l2",
    must_fail=["PP-2-01"],
    watchdog=8,
)
def device_of_a_stage_not_found(patch: Patch) -> None:
    @patch.around(f"{_OURS}.stage:_device_of", parameters=("module",))
    def device(_: Any, module: Any) -> torch.device:
        patch.reached()
        return torch.device("meta")

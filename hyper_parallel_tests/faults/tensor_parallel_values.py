"""Faults of tensor parallelism on torch_native that change what a divided network learns."""

from __future__ import annotations

from typing import Any

import torch
from torch.distributed.tensor import DTensor, Partial, Replicate

from hyper_parallel_tests.faults import Patch, fault

_STYLE = "torch.distributed.tensor.parallel.style"
_INPUT = ("input_layouts", "desired_input_layouts", "mod", "inputs", "device_mesh")
_OUTPUT = ("output_layouts", "use_local_output", "mod", "outputs", "device_mesh")


@fault(
    id="tp-partial-outputs-averaged",
    symptom="The loss is off from the first step: each rowwise layer's output is too small by the number of ranks.",
    capability="tensor_parallel",
    layer="l2",
    must_fail=["TP-2-01", "TP-2-02"],
    ranks="all",
)
def partial_outputs_averaged(patch: Patch) -> None:
    @patch.around(f"{_STYLE}:RowwiseParallel._prepare_output_fn", parameters=_OUTPUT)
    def prepare(original: Any, layouts: Any, use_local_output: bool, mod: Any, outputs: Any, mesh: Any) -> Any:
        if outputs.placements == (Partial("sum"),):
            patch.reached()
            outputs = outputs / mesh.size()
        return original(layouts, use_local_output, mod, outputs, mesh)


@fault(
    id="tp-heads-of-the-neighbour",
    symptom="The loss is a random one: columns of a rank are those of its neighbour, its rows are not.",
    capability="tensor_parallel",
    layer="l2",
    must_fail=["TP-2-01"],
    ranks="all",
)
def heads_of_the_neighbour(patch: Patch) -> None:
    @patch.around(
        f"{_STYLE}:ColwiseParallel._partition_linear_fn", parameters=("self", "name", "module", "device_mesh")
    )
    def partition(original: Any, self: Any, name: str, module: Any, mesh: Any) -> None:
        patch.reached()
        with torch.no_grad():
            module.weight.copy_(module.weight.roll(-(-len(module.weight) // mesh.size()), 0))
        original(self, name, module, mesh)


@fault(
    id="tp-gradient-of-own-columns",
    symptom="The loss is right at step 0; then what stands before a columnwise layer learns from part of its gradient.",
    capability="tensor_parallel",
    layer="l2",
    must_fail=["TP-2-01"],
    ranks="all",
)
def gradient_of_own_columns(patch: Patch) -> None:
    @patch.around(
        f"{_STYLE}:PrepareModuleInput._prepare_input_arg",
        parameters=("self", "input", "mesh", "input_layout", "desired_layout"),
    )
    def prepare(original: Any, self: Any, given: Any, mesh: Any, layout: Any, desired: Any) -> Any:
        if layout != Replicate() or isinstance(given, DTensor):
            return original(self, given, mesh, layout, desired)
        patch.reached()
        return DTensor.from_local(given, mesh, [Replicate()], grad_placements=[Partial()])


@fault(
    id="tp-norm-learns-from-own-tokens",
    symptom="With sequence parallelism the loss falls more slowly: norms learn from a rank's tokens, and drift apart.",
    capability="tensor_parallel",
    layer="l2",
    must_fail=["TP-2-02"],
    ranks="all",
)
def norm_learns_from_own_tokens(patch: Patch) -> None:
    def keep_own_term(parameter: Any) -> None:
        patch.reached()
        parameter.grad = DTensor.from_local(parameter.grad.to_local(), parameter.device_mesh, [Replicate()])

    @patch.around(
        f"{_STYLE}:SequenceParallel._replicate_module_fn", parameters=("self", "name", "module", "device_mesh")
    )
    def replicate(original: Any, self: Any, name: str, module: Any, mesh: Any) -> None:
        original(self, name, module, mesh)
        for parameter in module.parameters():
            parameter.register_post_accumulate_grad_hook(keep_own_term)


@fault(
    id="tp-sequence-gathered-out-of-order",
    symptom="With sequence parallelism tokens attend to the wrong ones: the gathered parts are in the reverse order.",
    capability="tensor_parallel",
    layer="l2",
    must_fail=["TP-2-02"],
    ranks="all",
)
def sequence_gathered_out_of_order(patch: Patch) -> None:
    @patch.around(
        f"{_STYLE}:PrepareModuleInput._prepare_input_arg",
        parameters=("self", "input", "mesh", "input_layout", "desired_layout"),
    )
    def prepare(original: Any, self: Any, given: Any, mesh: Any, layout: Any, desired: Any) -> Any:
        found = original(self, given, mesh, layout, desired)
        if layout is None or not layout.is_shard():
            return found
        patch.reached()
        return found.roll(found.shape[1] // mesh.size(), 1)

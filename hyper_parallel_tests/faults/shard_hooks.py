"""Faults of declarative sharding on torch_native: hooks and what is left of them, parameters, structures of outputs."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

from torch import nn
from torch.distributed.tensor import DTensor, Replicate

from hyper_parallel_tests.faults import Patch, fault

_OURS = "hyper_parallel_tests.engines.torch_native.shard"
_MODULE = "torch.nn.modules.module:Module"
_PARTS = ("value", "parts")


def _is_ours(hook: Any) -> bool:
    return type(hook).__module__ == f"{_OURS}.injection"


def _runs_first(patch: Patch, registering: str) -> None:
    """A plan's hooks are put before those that the module has already; `registering` is the method of a module."""

    @patch.around(f"{_MODULE}.{registering}", parameters=("self", "hook"))
    def register(original: Any, self: Any, hook: Any, **options: Any) -> Any:
        if not _is_ours(hook):
            return original(self, hook, **options)
        patch.reached()
        return original(self, hook, **{**options, "prepend": True})


@fault(
    id="sh-input-hook-runs-first",
    symptom="A hook that was to see what the user passed sees gathered inputs.",
    capability="shard",
    layer="l1",
    must_fail=["SH-1-01"],
    ranks="all",
)
def input_hook_runs_first(patch: Patch) -> None:
    _runs_first(patch, "register_forward_pre_hook")


@fault(
    id="sh-output-hook-runs-first",
    symptom="What the module's own hook adds to the output comes in another layout than the plan's.",
    capability="shard",
    layer="l1",
    must_fail=["SH-1-01"],
    ranks="all",
)
def output_hook_runs_first(patch: Patch) -> None:
    _runs_first(patch, "register_forward_hook")


@fault(
    id="sh-inputs-moved-twice",
    symptom="The values are right, and each module gathers its inputs twice.",
    capability="shard",
    layer="l1",
    must_fail=["SH-1-01"],
    ranks="all",
)
def inputs_moved_twice(patch: Patch) -> None:
    @patch.around(f"{_OURS}.mapping:moved_to", parameters=("value", "placements", "device_mesh"))
    def moved(original: Any, value: Any, placements: Any, device_mesh: Any) -> Any:
        if placements is not None and isinstance(value, DTensor):
            patch.reached()
            value.redistribute(device_mesh, [Replicate()] * device_mesh.ndim)
        return original(value, placements, device_mesh)


@fault(
    id="sh-forward-itself-replaced",
    symptom="Code that calls forward to go without hooks gets its inputs gathered all the same.",
    capability="shard",
    layer="l1",
    must_fail=["SH-1-02"],
    ranks="all",
)
def forward_itself_replaced(patch: Patch) -> None:
    @patch.around(f"{_OURS}:shard_module", parameters=("model", "device_mesh", "sharding_plan"))
    def shard(original: Any, model: Any, device_mesh: Any, sharding_plan: Any) -> Any:
        found = original(model, device_mesh, sharding_plan)
        for module in found.modules() if isinstance(found, nn.Module) else ():
            for hook in module._forward_pre_hooks.values():
                if _is_ours(hook) and "forward" not in vars(module):
                    patch.reached()
                    module.forward = _laying_out(module.forward, hook._inputs)
        return found


def _laying_out(forward: Any, inputs: Any) -> Any:
    @functools.wraps(forward)
    def call(*args: Any, **kwargs: Any) -> Any:
        args, kwargs = inputs.lay_out(args, kwargs)
        return forward(*args, **kwargs)

    return call


@fault(
    id="sh-hooks-pile-up",
    symptom="Steps get slower each time that the plan is applied, as in a notebook.",
    capability="shard",
    layer="l1",
    must_fail=["SH-1-01", "SH-1-03"],
    ranks="all",
)
def hooks_pile_up(patch: Patch) -> None:
    @patch.around(f"{_OURS}.injection:take_off", parameters=("module", "kind"))
    def take_off(_: Any, module: Any, kind: Any) -> None:
        patch.reached()


@fault(
    id="sh-removal-keeps-output-hooks",
    symptom="After sharding is taken off, a distributed tensor that passes is still gathered.",
    capability="shard",
    layer="l1",
    must_fail=["SH-1-03"],
    ranks="all",
)
def removal_keeps_output_hooks(patch: Patch) -> None:
    @patch.around(f"{_OURS}:remove_sharding_plan", parameters=("module",))
    def remove(original: Any, module: Any) -> Any:
        kept = [(one, hook) for one in module.modules() for hook in one._forward_hooks.values() if _is_ours(hook)]
        found = original(module)
        for one, hook in kept:
            patch.reached()
            one.register_forward_hook(hook)
        return found


@fault(
    id="sh-removal-leaves-parts",
    symptom="A checkpoint taken after sharding is removed has this rank's part of each matrix.",
    capability="shard",
    layer="l1",
    must_fail=["SH-1-03"],
    ranks="all",
)
def removal_leaves_parts(patch: Patch) -> None:
    @patch.around(f"{_OURS}.injection:_put", parameters=("model", "old", "new"))
    def put(original: Any, model: Any, old: Any, new: Any) -> None:
        if not isinstance(new, DTensor):
            patch.reached()
            new = nn.Parameter(old.detach().to_local(), old.requires_grad)
        original(model, old, new)


@fault(
    id="sh-dataclass-becomes-a-dict",
    symptom="After sharding, attributes of the model's output are gone.",
    capability="shard",
    layer="l1",
    must_fail=["SH-1-04"],
    ranks="all",
)
def dataclass_becomes_a_dict(patch: Patch) -> None:
    @patch.around(f"{_OURS}.mapping:with_parts", parameters=_PARTS)
    def with_parts(original: Any, value: Any, parts: dict[Any, Any]) -> Any:
        if not dataclasses.is_dataclass(value):
            return original(value, parts)
        patch.reached()
        return parts


@fault(
    id="sh-named-tuple-becomes-a-tuple",
    symptom="After sharding, parts of the output can be reached by number only.",
    capability="shard",
    layer="l1",
    must_fail=["SH-1-04"],
    ranks="all",
)
def named_tuple_becomes_a_tuple(patch: Patch) -> None:
    @patch.around(f"{_OURS}.mapping:with_parts", parameters=_PARTS)
    def with_parts(original: Any, value: Any, parts: dict[Any, Any]) -> Any:
        if not hasattr(value, "_make"):
            return original(value, parts)
        patch.reached()
        return tuple(parts.values())


@fault(
    id="sh-output-changed-in-place",
    symptom="What a module caches of its output turns into another layout behind its back.",
    capability="shard",
    layer="l1",
    must_fail=["SH-1-04"],
    ranks="all",
)
def output_changed_in_place(patch: Patch) -> None:
    @patch.around(f"{_OURS}.mapping:with_parts", parameters=_PARTS)
    def with_parts(original: Any, value: Any, parts: dict[Any, Any]) -> Any:
        if not isinstance(value, dict):
            return original(value, parts)
        patch.reached()
        value.update(parts)
        return value


@fault(
    id="sh-local-parts-of-one-level",
    symptom="Distributed tensors come out of a model that was to return local ones, deep in its output.",
    capability="shard",
    layer="l1",
    must_fail=["SH-1-04"],
    ranks="all",
)
def local_parts_of_one_level(patch: Patch) -> None:
    # The hook holds the function itself, so that only what it calls again for the parts is met here.
    @patch.around(f"{_OURS}.mapping:local_parts", parameters=("output",))
    def local_parts(original: Any, output: Any) -> Any:
        if isinstance(output, DTensor):
            return original(output)
        patch.reached()
        return output


@fault(
    id="sh-function-returns-distributed",
    symptom="A loss function that was to return plain numbers returns distributed tensors, which the logger refuses.",
    capability="shard",
    layer="l1",
    must_fail=["SH-1-04"],
    ranks="all",
)
def function_returns_distributed(patch: Patch) -> None:
    @patch.around(f"{_OURS}.injection:_shard_function", parameters=("function", "device_mesh", "plan"))
    def shard(original: Any, function: Any, device_mesh: Any, plan: Any) -> Any:
        if plan.return_local_tensor:
            patch.reached()
        return original(function, device_mesh, dataclasses.replace(plan, return_local_tensor=None))


@fault(
    id="sh-parameters-scattered",
    symptom="Start-up of a large model is slow: its parameters are sent by one rank to all others.",
    capability="shard",
    layer="l1",
    must_fail=["SH-1-03"],
    ranks="all",
)
def parameters_scattered(patch: Patch) -> None:
    @patch.around(f"{_OURS}.injection:distribute_tensor", parameters=("tensor", "device_mesh", "placements"))
    def distribute(original: Any, tensor: Any, device_mesh: Any, placements: Any, **options: Any) -> Any:
        patch.reached()
        return original(tensor, device_mesh, placements, **{**options, "src_data_rank": 0})


@fault(
    id="sh-removal-thaws-parameters",
    symptom="After sharding is taken off, layers that were frozen for fine-tuning train.",
    capability="shard",
    layer="l1",
    must_fail=["SH-1-03"],
    ranks="all",
)
def removal_thaws_parameters(patch: Patch) -> None:
    @patch.around(f"{_OURS}.injection:_put", parameters=("model", "old", "new"))
    def put(original: Any, model: Any, old: Any, new: Any) -> None:
        if not isinstance(new, DTensor) and not new.requires_grad:
            patch.reached()
            new.requires_grad_()
        original(model, old, new)

"""Faults of declarative sharding on torch_native: what a plan's names reach, and which argument gets which layout."""

from __future__ import annotations

from fnmatch import fnmatchcase
from typing import Any

import torch
from torch.distributed.tensor import DTensor, Replicate

from hyper_parallel_tests.faults import Patch, fault

_OURS = "hyper_parallel_tests.engines.torch_native.shard"
_MOVE = ("value", "placements", "device_mesh")


@fault(
    id="sh-wildcard-crosses-levels",
    symptom="A plan for the top modules hooks every module of the model, and inner layers gather their inputs.",
    capability="shard",
    layer="l0",
    must_fail=["SH-0-01"],
)
def wildcard_crosses_levels(patch: Patch) -> None:
    @patch.around(f"{_OURS}.plan:_fits", parameters=("name", "levels"))
    def fits(original: Any, name: list[str], levels: list[str]) -> bool:
        found = fnmatchcase(".".join(name), ".".join(levels))
        if found != original(name, levels):
            patch.reached()
        return found


@fault(
    id="sh-unknown-name-ignored",
    symptom="After a module is renamed its parameters are silently no longer divided.",
    capability="shard",
    layer="l0",
    must_fail=["SH-0-01"],
)
def unknown_name_ignored(patch: Patch) -> None:
    @patch.around(f"{_OURS}.plan:matching", parameters=("pattern", "names", "what"))
    def matching(original: Any, pattern: str, names: dict[str, str], what: str) -> list[str]:
        try:
            return original(pattern, names, what)
        except ValueError:
            patch.reached()
            return []


@fault(
    id="sh-refused-plan-half-done",
    symptom="After a mistake in a plan is mended, the model is divided twice: the first attempt had left its mark.",
    capability="shard",
    layer="l0",
    must_fail=["SH-0-01"],
)
def refused_plan_half_done(patch: Patch) -> None:
    @patch.around(f"{_OURS}.injection:resolve", parameters=("model", "device_mesh", "plan"))
    def resolve(original: Any, model: Any, device_mesh: Any, plan: Any) -> Any:
        from hyper_parallel_tests.engines.torch_native.shard.injection import distribute_parameter

        early = original(model, device_mesh, type(plan)(plan=plan.plan))
        for name, placements in early.parameters.items():
            patch.reached()
            distribute_parameter(model, name, placements, device_mesh)
        return original(model, device_mesh, plan)


@fault(
    id="sh-layout-of-another-tensor-taken",
    symptom="A plan of an older model, whose weights had other dimensions, is carried out in part before it fails.",
    capability="shard",
    layer="l0",
    must_fail=["SH-0-01"],
)
def layout_of_another_tensor_taken(patch: Patch) -> None:
    @patch.around(f"{_OURS}.plan:_of_parameter", parameters=("name", "ndim", "value", "device_mesh"))
    def of_parameter(_: Any, name: str, ndim: int, value: Any, device_mesh: Any) -> Any:
        from hyper_parallel_tests.engines.torch_native.shard.plan import one_layout

        patch.reached()
        return one_layout(value, device_mesh)


@fault(
    id="sh-last-of-two-layouts-wins",
    symptom="A wildcard that is added to a plan changes modules that the plan names themselves, without a word.",
    capability="shard",
    layer="l0",
    must_fail=["SH-0-01"],
)
def last_of_two_layouts_wins(patch: Patch) -> None:
    @patch.around(f"{_OURS}.plan:_say", parameters=("into", "name", "value", "key"))
    def say(_: Any, into: dict[str, Any], name: str, value: Any, key: str) -> None:
        if into.get(name, value) != value:
            patch.reached()
        into[name] = value


@fault(
    id="sh-tied-parameter-parted",
    symptom="Embedding and output head, tied before, learn different weights after sharding.",
    capability="shard",
    layer="l0",
    must_fail=["SH-0-01"],
)
def tied_parameter_parted(patch: Patch) -> None:
    @patch.around(f"{_OURS}.injection:_put", parameters=("model", "old", "new"))
    def put(_: Any, model: Any, old: Any, new: Any) -> None:
        for module in model.modules():
            for name, param in list(module.named_parameters(recurse=False)):
                if param is old:
                    patch.reached()
                    setattr(module, name, new)
                    return


@fault(
    id="sh-second-name-forgotten",
    symptom="A layer that reaches its weight by a second name too computes with the whole one.",
    capability="shard",
    layer="l0",
    must_fail=["SH-0-01"],
)
def second_name_forgotten(patch: Patch) -> None:
    @patch.around(f"{_OURS}.injection:_put", parameters=("model", "old", "new"))
    def put(_: Any, model: Any, old: Any, new: Any) -> None:
        for module in model.modules():
            names = [name for name, param in module._parameters.items() if param is old]
            if len(names) > 1:
                patch.reached()
            for name in names[:1]:
                setattr(module, name, new)


@fault(
    id="sh-plan-prints-names-only",
    symptom="A log of the plan does not tell how anything is divided.",
    capability="shard",
    layer="l0",
    must_fail=["SH-0-01"],
)
def plan_prints_names_only(patch: Patch) -> None:
    @patch.around(f"{_OURS}.plan:ShardingPlan.__str__", parameters=("self",))
    def text(_: Any, self: Any) -> str:
        patch.reached()
        return " ".join([*(self.plan or {}), *(self.input_plan or {}), *(self.output_plan or {})])


@fault(
    id="sh-pickled-plan-forgets-outputs",
    symptom="Workers that get the plan over a pipe leave outputs as they are.",
    capability="shard",
    layer="l0",
    must_fail=["SH-0-01"],
)
def pickled_plan_forgets_outputs(patch: Patch) -> None:
    def make(original: Any) -> Any:
        def state(self: Any) -> dict[str, Any]:
            patch.reached()
            return {**vars(self), "output_plan": None}

        return state

    patch.replace(f"{_OURS}.plan:ShardingPlan.__getstate__", make)


@fault(
    id="sh-inputs-by-name-not-laid-out",
    symptom="A model that passes its mask by name gets another rank's part of it.",
    capability="shard",
    layer="l0",
    must_fail=["SH-0-02"],
)
def inputs_by_name_not_laid_out(patch: Patch) -> None:
    @patch.around(f"{_OURS}.mapping:Inputs._named", parameters=("self", "name"))
    def named(_: Any, self: Any, name: str) -> None:
        patch.reached()


@fault(
    id="sh-arguments-put-in-place",
    symptom="Other hooks no longer find the arguments that were passed by name.",
    capability="shard",
    layer="l0",
    must_fail=["SH-0-02"],
)
def arguments_put_in_place(patch: Patch) -> None:
    @patch.around(f"{_OURS}.mapping:Inputs.lay_out", parameters=("self", "args", "kwargs"))
    def lay_out(original: Any, self: Any, args: Any, kwargs: Any) -> Any:
        args, kwargs = original(self, args, kwargs)
        while len(args) < len(self._in_place) and self._in_place[len(args)] in kwargs:
            patch.reached()
            args = (*args, kwargs.pop(self._in_place[len(args)]))
        return args, kwargs


@fault(
    id="sh-missing-layout-shifts-the-others",
    symptom="Where one argument has no layout, the next one's goes to it.",
    capability="shard",
    layer="l0",
    must_fail=["SH-0-02"],
)
def missing_layout_shifts_the_others(patch: Patch) -> None:
    @patch.around(f"{_OURS}.mapping:Inputs._at", parameters=("self", "place"))
    def at(original: Any, self: Any, place: int) -> Any:
        if not isinstance(self._layouts, tuple) or None not in self._layouts:
            return original(self, place)
        patch.reached()
        given = [one for one in self._layouts if one is not None]
        return given[place] if place < len(given) else None


@fault(
    id="sh-plain-tensors-distributed",
    symptom="A mask that each rank made for itself is taken for a distributed one.",
    capability="shard",
    layer="l0",
    must_fail=["SH-0-02"],
)
def plain_tensors_distributed(patch: Patch) -> None:
    @patch.around(f"{_OURS}.mapping:moved_to", parameters=_MOVE)
    def moved(original: Any, value: Any, placements: Any, device_mesh: Any) -> Any:
        if placements is None or not isinstance(value, torch.Tensor) or isinstance(value, DTensor):
            return original(value, placements, device_mesh)
        patch.reached()
        return DTensor.from_local(value, device_mesh, [Replicate()] * device_mesh.ndim)


@fault(
    id="sh-variable-arguments-forgotten",
    symptom="A module with *args gathers its first input only.",
    capability="shard",
    layer="l0",
    must_fail=["SH-0-02"],
)
def variable_arguments_forgotten(patch: Patch) -> None:
    @patch.around(f"{_OURS}.mapping:Inputs._at", parameters=("self", "place"))
    def at(original: Any, self: Any, place: int) -> Any:
        if place < len(self._in_place):
            return original(self, place)
        patch.reached()
        return None

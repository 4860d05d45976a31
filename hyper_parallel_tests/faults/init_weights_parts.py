"""Faults of deferred initialization on torch_native: each rank's parts, and what surrounds the parameters."""

from __future__ import annotations

from typing import Any

from torch.distributed.tensor import DTensor
from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

from hyper_parallel_tests.faults import Patch, fault

_OURS = "hyper_parallel_tests.engines.torch_native.init_weights"


@fault(
    id="iw-whole-tensor-kept-alive",
    symptom="After materialization each rank holds the whole model: its shards are views of whole tensors.",
    capability="init_weights",
    layer="l1",
    must_fail=["IW-1-01"],
    ranks="all",
)
def whole_tensor_kept_alive(patch: Patch) -> None:
    def make(original: Any) -> Any:
        def keep_part(tensor: Any, whole: Any) -> None:
            if not isinstance(tensor, DTensor):
                original(tensor, whole)
                return
            patch.reached()
            shape, offset = compute_local_shape_and_global_offset(whole.shape, tensor.device_mesh, tensor.placements)
            tensor._local_tensor = whole.detach()[tuple(map(_span, offset, shape))]

        return keep_part

    patch.replace(f"{_OURS}:_keep_part", make, parameters=("tensor", "whole"))


def _span(start: int, length: int) -> slice:
    return slice(start, start + length)


@fault(
    id="iw-hooks-dropped",
    symptom="Loggers and profilers that were attached to the deferred model stay silent.",
    capability="init_weights",
    layer="l1",
    must_fail=["IW-1-01"],
    ranks="all",
)
def hooks_dropped(patch: Patch) -> None:
    def make(original: Any) -> Any:
        def draw(owner: Any, waiting: Any) -> None:
            original(owner, waiting)
            for hooks in (owner._forward_pre_hooks, owner._forward_hooks):
                for key in [key for key, hook in hooks.items() if not hook.__module__.startswith("torch.")]:
                    patch.reached()
                    del hooks[key]

        return draw

    patch.replace(f"{_OURS}:_draw", make, parameters=("owner", "waiting"))


@fault(
    id="iw-buffers-emptied",
    symptom="Running statistics and tables that the model had are zeros after materialization.",
    capability="init_weights",
    layer="l1",
    must_fail=["IW-1-01"],
    ranks="all",
)
def buffers_emptied(patch: Patch) -> None:
    def make(original: Any) -> Any:
        def draw(owner: Any, waiting: Any) -> None:
            for buffer in owner.buffers(recurse=False):
                if buffer not in waiting:
                    patch.reached()
                    buffer.zero_()
            original(owner, waiting)

        return draw

    patch.replace(f"{_OURS}:_draw", make, parameters=("owner", "waiting"))


@fault(
    id="iw-deferred-buffers-not-computed",
    symptom="Rotary tables and masks that were deferred too are zeros: the loss is finite and wrong.",
    capability="init_weights",
    layer="l0",
    must_fail=["IW-0-01", "IW-1-01"],
    ranks="all",
)
def deferred_buffers_not_computed(patch: Patch) -> None:
    def make(original: Any) -> Any:
        def draw(owner: Any, waiting: Any) -> None:
            for buffer in owner.buffers(recurse=False):
                if buffer in waiting:
                    patch.reached()
                    waiting.remove(buffer)
                    buffer.zero_()
            original(owner, waiting)

        return draw

    patch.replace(f"{_OURS}:_draw", make, parameters=("owner", "waiting"))


@fault(
    id="iw-meta-parameters-not-noticed",
    symptom="A forgotten materialization ends deep in a collective, with a message about devices or nothing.",
    capability="init_weights",
    layer="l1",
    must_fail=["IW-1-01"],
    ranks="all",
)
def meta_parameters_not_noticed(patch: Patch) -> None:
    target = "torch.distributed.fsdp._fully_shard._fsdp_param_group:FSDPParamGroup._validate_no_meta_params"
    patch.replace(target, lambda _: lambda self: patch.reached(), parameters=("self",))


@fault(
    id="iw-first-part-on-every-rank",
    symptom="All ranks start from the same part: half of the model repeats the other half.",
    capability="init_weights",
    layer="l2",
    must_fail=["IW-2-01"],
)
def first_part_on_every_rank(patch: Patch) -> None:
    def make(_: Any) -> Any:
        def distribute(whole: Any, mesh: Any, placements: Any, src_data_rank: Any = None) -> Any:
            patch.reached()
            part = whole
            for axis, placement in enumerate(placements):
                if hasattr(placement, "dim"):
                    part = part.chunk(mesh.size(axis), placement.dim)[0]
            return DTensor.from_local(part, mesh, placements, run_check=False)

        return distribute

    patch.replace(f"{_OURS}:distribute_tensor", make, parameters=("tensor", "device_mesh", "placements"))


@fault(
    id="iw-ranks-draw-apart",
    symptom="Gathered, the model is a patchwork of as many random starts as there are ranks.",
    capability="init_weights",
    layer="l2",
    must_fail=["IW-2-01"],
)
def ranks_draw_apart(patch: Patch) -> None:
    def make(original: Any) -> Any:
        def random_numbers_of(stage_index: int) -> Any:
            patch.reached()
            return original(stage_index + patch.rank)

        return random_numbers_of

    patch.replace(f"{_OURS}:_random_numbers_of", make)


@fault(
    id="iw-state-dict-copied-into-nothing",
    symptom="Loading reports success and the model has no values: the copy went to the meta device.",
    capability="init_weights",
    layer="l2",
    must_fail=["IW-2-01"],
    ranks="all",
)
def state_dict_copied_into_nothing(patch: Patch) -> None:
    def make(original: Any) -> Any:
        def load_state_dict(self: Any, state_dict: Any, strict: bool = True, assign: bool = False) -> Any:
            if assign:
                patch.reached()
            return original(self, state_dict, strict)

        return load_state_dict

    patch.replace("torch.nn:Module.load_state_dict", make, parameters=("self", "state_dict", "strict", "assign"))

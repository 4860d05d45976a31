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
    @patch.around(f"{_OURS}:_keep_part", parameters=("tensor", "whole"))
    def keep_part(original: Any, tensor: Any, whole: Any) -> None:
        if not isinstance(tensor, DTensor):
            original(tensor, whole)
            return
        patch.reached()
        shape, offset = compute_local_shape_and_global_offset(whole.shape, tensor.device_mesh, tensor.placements)
        tensor._local_tensor = whole.detach()[tuple(map(_span, offset, shape))]


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
    @patch.around(f"{_OURS}:_draw", parameters=("owner", "waiting"))
    def draw(original: Any, owner: Any, waiting: Any) -> None:
        original(owner, waiting)
        for hooks in (owner._forward_pre_hooks, owner._forward_hooks):
            for key in [key for key, hook in hooks.items() if not hook.__module__.startswith("torch.")]:
                patch.reached()
                del hooks[key]


@fault(
    id="iw-buffers-emptied",
    symptom="Running statistics and tables that the model had are zeros after materialization.",
    capability="init_weights",
    layer="l1",
    must_fail=["IW-1-01"],
    ranks="all",
)
def buffers_emptied(patch: Patch) -> None:
    @patch.around(f"{_OURS}:_draw", parameters=("owner", "waiting"))
    def draw(original: Any, owner: Any, waiting: Any) -> None:
        for buffer in owner.buffers(recurse=False):
            if buffer not in waiting:
                patch.reached()
                buffer.zero_()
        original(owner, waiting)


@fault(
    id="iw-deferred-buffers-not-computed",
    symptom="Rotary tables and masks that were deferred too are zeros: the loss is finite and wrong.",
    capability="init_weights",
    layer="l0",
    must_fail=["IW-0-01", "IW-1-01"],
    ranks="all",
)
def deferred_buffers_not_computed(patch: Patch) -> None:
    @patch.around(f"{_OURS}:_draw", parameters=("owner", "waiting"))
    def draw(original: Any, owner: Any, waiting: Any) -> None:
        for buffer in owner.buffers(recurse=False):
            if buffer in waiting:
                patch.reached()
                waiting.remove(buffer)
                buffer.zero_()
        original(owner, waiting)


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
    @patch.around(f"{_OURS}:distribute_tensor", parameters=("tensor", "device_mesh", "placements"))
    def distribute(_: Any, whole: Any, mesh: Any, placements: Any, src_data_rank: Any = None) -> Any:
        patch.reached()
        part = whole
        for axis, placement in enumerate(placements):
            if hasattr(placement, "dim"):
                part = part.chunk(mesh.size(axis), placement.dim)[0]
        return DTensor.from_local(part, mesh, placements, run_check=False)


@fault(
    id="iw-ranks-draw-apart",
    symptom="Gathered, the model is a patchwork of as many random starts as there are ranks.",
    capability="init_weights",
    layer="l2",
    must_fail=["IW-2-01"],
)
def ranks_draw_apart(patch: Patch) -> None:
    @patch.around(f"{_OURS}:_random_numbers_of")
    def random_numbers_of(original: Any, stage_index: int) -> Any:
        patch.reached()
        return original(stage_index + patch.rank)


@fault(
    id="iw-state-dict-copied-into-nothing",
    symptom="Loading reports success and the model has no values: the copy went to the meta device.",
    capability="init_weights",
    layer="l2",
    must_fail=["IW-2-01"],
    ranks="all",
)
def state_dict_copied_into_nothing(patch: Patch) -> None:
    @patch.around("torch.nn:Module.load_state_dict", parameters=("self", "state_dict", "strict", "assign"))
    def load_state_dict(original: Any, self: Any, state_dict: Any, strict: bool = True, assign: bool = False) -> Any:
        if assign:
            patch.reached()
        return original(self, state_dict, strict)

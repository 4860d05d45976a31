"""Faults of deferred initialization on torch_native: what is deferred, and the values that it starts from."""

from __future__ import annotations

from typing import Any

import torch

from hyper_parallel_tests.faults import Patch, fault

_OURS = "hyper_parallel_tests.engines.torch_native.init_weights"


@fault(
    id="iw-buffers-deferred-unasked",
    symptom="Tables that a constructor computes are lost: the first step after loading fails or is garbage.",
    capability="init_weights",
    layer="l0",
    must_fail=["IW-0-01"],
)
def buffers_deferred_unasked(patch: Patch) -> None:
    @patch.around(f"{_OURS}:init_on_device", parameters=("device", "include_buffers"))
    def init_on_device(original: Any, device: Any, include_buffers: bool = False) -> Any:
        if not include_buffers:
            patch.reached()
        return original(device, True)


@fault(
    id="iw-include-buffers-not-read",
    symptom="Buffers are allocated whole although the model was to have no storage.",
    capability="init_weights",
    layer="l0",
    must_fail=["IW-0-01", "IW-1-01"],
    ranks="all",
)
def include_buffers_not_read(patch: Patch) -> None:
    @patch.around(f"{_OURS}:init_on_device", parameters=("device", "include_buffers"))
    def init_on_device(original: Any, device: Any, include_buffers: bool = False) -> Any:
        if include_buffers:
            patch.reached()
        return original(device, False)


@fault(
    id="iw-requires-grad-lost",
    symptom="Frozen parameters train after a deferred start.",
    capability="init_weights",
    layer="l0",
    must_fail=["IW-0-01"],
)
def requires_grad_lost(patch: Patch) -> None:
    @patch.around(f"{_OURS}:_in_the_manner_of", parameters=("tensor", "values"))
    def in_the_manner_of(_: Any, tensor: Any, values: Any) -> Any:
        patch.reached()
        return torch.nn.Parameter(values) if isinstance(tensor, torch.nn.Parameter) else values


@fault(
    id="iw-shared-parameter-deferred-twice",
    symptom="Tied weights drift apart: each of the modules gets a stand-in of its own.",
    capability="init_weights",
    layer="l0",
    must_fail=["IW-0-01"],
)
def shared_parameter_deferred_twice(patch: Patch) -> None:
    @patch.around(f"{_OURS}:_move", parameters=("tensor", "device", "moved"))
    def move(original: Any, tensor: Any, device: Any, moved: Any) -> Any:
        patch.reached()
        return original(tensor, device, {})


@fault(
    id="iw-parents-first",
    symptom="A module that starts from its children's weights starts from memory without values.",
    capability="init_weights",
    layer="l0",
    must_fail=["IW-0-01"],
)
def parents_first(patch: Patch) -> None:
    @patch.around(f"{_OURS}:_children_first", parameters=("module",))
    def children_last(_: Any, module: Any) -> Any:
        patch.reached()
        return module.modules()


@fault(
    id="iw-second-module-overwrites-shared-values",
    symptom="Tied weights start with the output layer's distribution instead of the embedding's.",
    capability="init_weights",
    layer="l0",
    must_fail=["IW-0-01", "IW-2-01"],
    ranks="all",
)
def second_module_overwrites_shared_values(patch: Patch) -> None:
    @patch.around(f"{_OURS}:_draw", parameters=("owner", "waiting"))
    def draw(original: Any, owner: Any, waiting: Any) -> None:
        patch.reached()
        original(owner, set(waiting))


@fault(
    id="iw-loaded-values-drawn-again",
    symptom="Weights that were loaded before the rest is initialized are overwritten with random ones.",
    capability="init_weights",
    layer="l0",
    must_fail=["IW-0-01", "IW-1-01"],
    ranks="all",
)
def loaded_values_drawn_again(patch: Patch) -> None:
    @patch.around(f"{_OURS}:_draw", parameters=("owner", "waiting"))
    def draw(original: Any, owner: Any, waiting: Any) -> None:
        patch.reached()
        original(owner, waiting | {*owner.parameters(recurse=False), *owner.buffers(recurse=False)})


@fault(
    id="iw-nothing-deferred",
    symptom="Making a large model runs out of memory as if it were made in the ordinary way.",
    capability="init_weights",
    layer="l0",
    must_fail=["IW-0-01", "IW-1-01"],
    ranks="all",
)
def nothing_deferred(patch: Patch) -> None:
    @patch.around(f"{_OURS}:_move", parameters=("tensor", "device", "moved"))
    def move(_: Any, tensor: Any, device: Any, moved: Any) -> Any:
        patch.reached()
        return tensor

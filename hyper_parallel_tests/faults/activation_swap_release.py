"""Faults of activation swap on torch_native: what is never freed, and what models share that they should not."""

from __future__ import annotations

from typing import Any

from hyper_parallel_tests.faults import Patch, fault

_OURS = "hyper_parallel_tests.engines.torch_native.activation_swap"
_MANAGER = f"{_OURS}.manager:_Manager"


@fault(
    id="swap-what-stays-holds-its-graph",
    symptom="Each step that is dropped before its backward stays in memory for good.",
    capability="activation_swap",
    layer="l1",
    must_fail=["SW-1-02"],
)
def what_stays_holds_its_graph(patch: Patch) -> None:
    @patch.around(f"{_OURS}.saved:Kept.__init__", parameters=("self", "tensor"))
    def init(original: Any, self: Any, tensor: Any) -> None:
        original(self, tensor)
        patch.reached()
        self._alias = tensor


@fault(
    id="swap-models-held-by-their-order",
    symptom="A process that builds one model after the other runs out of memory.",
    capability="activation_swap",
    layer="l1",
    must_fail=["SW-1-02"],
)
def models_held_by_their_order(patch: Patch) -> None:
    held: list[Any] = []
    patch.at_the_end(held.clear)

    @patch.around(f"{_MANAGER}._place", parameters=("self", "layer"))
    def place(original: Any, self: Any, layer: Any) -> Any:
        patch.reached()
        held.append(layer)
        return original(self, layer)


@fault(
    id="swap-groups-named-by-the-living",
    symptom="After a model is dropped, the next two share groups: one's backward fetches what the other one needs.",
    capability="activation_swap",
    layer="l1",
    must_fail=["SW-1-02"],
)
def groups_named_by_the_living(patch: Patch) -> None:
    @patch.around(f"{_MANAGER}._place", parameters=("self", "layer"))
    def place(original: Any, self: Any, layer: Any) -> Any:
        if self._named != len(self._places):
            patch.reached()
        self._named = len(self._places)
        return original(self, layer)


@fault(
    id="swap-group-holds-its-tensors",
    symptom="Memory grows from step to step: groups are not emptied by backward.",
    capability="activation_swap",
    layer="l1",
    must_fail=["SW-1-02"],
)
def group_holds_its_tensors(patch: Patch) -> None:
    held: list[Any] = []
    patch.at_the_end(held.clear)

    @patch.around(f"{_OURS}.saved:SwapGroup.add", parameters=("self", "saved"))
    def add(original: Any, self: Any, saved: Any) -> None:
        patch.reached()
        held.append(saved)
        original(self, saved)

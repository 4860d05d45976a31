"""Faults of activation swap on torch_native: what is on the device when it need not be."""

from __future__ import annotations

from typing import Any

from hyper_parallel_tests.faults import Patch, fault

_OURS = "hyper_parallel_tests.engines.torch_native.activation_swap"
_MANAGER = f"{_OURS}.manager:_Manager"


@fault(
    id="swap-nothing-moves",
    symptom="Swap is on, training is right, and memory is as without it.",
    capability="activation_swap",
    layer="l2",
    must_fail=["SW-2-02"],
)
def nothing_moves(patch: Patch) -> None:
    @patch.around(f"{_OURS}.wrapper:base_check_fn", parameters=("tensor",))
    def check(_: Any, tensor: Any, **options: Any) -> bool:
        patch.reached()
        return False


@fault(
    id="swap-device-memory-not-freed",
    symptom="Copies are on the host, and the originals on the device all the same.",
    capability="activation_swap",
    layer="l2",
    must_fail=["SW-2-02"],
)
def device_memory_not_freed(patch: Patch) -> None:
    @patch.around(f"{_OURS}.saved:Saved.leave", parameters=("self",))
    def leave(original: Any, self: Any) -> None:
        patch.reached()
        self.kept = self.here
        original(self)


@fault(
    id="swap-all-groups-come-at-once",
    symptom="Memory at the beginning of backward is as without swap.",
    capability="activation_swap",
    layer="l2",
    must_fail=["SW-2-02"],
)
def all_groups_come_at_once(patch: Patch) -> None:
    @patch.around(f"{_MANAGER}._before_backward", parameters=("self", "place"))
    def before(original: Any, self: Any, place: Any) -> None:
        patch.reached()
        for name in self._groups:
            self.launch_load(name)
        original(self, place)


@fault(
    id="swap-last-layer-swapped",
    symptom="The last layer's tensors go to the host and are fetched at once, while backward waits.",
    capability="activation_swap",
    layer="l2",
    must_fail=["SW-2-02"],
)
def last_layer_swapped(patch: Patch) -> None:
    @patch.around(f"{_MANAGER}._after_forward", parameters=("self", "place"))
    def after(original: Any, self: Any, place: Any) -> None:
        original(self, place)
        if place.next is None:
            patch.reached()
            self.launch_offload(place.name)
            self.wait_offload(place.name)

    @patch.around(f"{_MANAGER}._before_backward", parameters=("self", "place"))
    def before(original: Any, self: Any, place: Any) -> None:
        self.wait_load(place.name)
        original(self, place)


@fault(
    id="swap-budget-taken-twice",
    symptom="A generated policy runs out of memory.",
    capability="activation_swap",
    layer="l2",
    must_fail=["SW-2-02"],
)
def budget_taken_twice(patch: Patch) -> None:
    @patch.around(f"{_OURS}:generate_swap_policy", parameters=("layer_bytes", "memory_budget"))
    def generate(original: Any, layer_bytes: Any, memory_budget: int) -> Any:
        patch.reached()
        return original(layer_bytes, 2 * memory_budget)

"""Faults of activation swap on torch_native: when groups move, and what is held afterwards."""

from __future__ import annotations

from typing import Any

from hyper_parallel_tests.faults import Patch, fault

_OURS = "hyper_parallel_tests.engines.torch_native.activation_swap"
_MANAGER = f"{_OURS}.manager:_Manager"
_TRANSFER = f"{_OURS}.copies:Transfer"


@fault(
    id="swap-load-one-layer-late",
    symptom="Backward with swap waits at every layer: a load starts at the layer's own hook.",
    capability="activation_swap",
    layer="l1",
    must_fail=["SW-1-02"],
)
def load_one_layer_late(patch: Patch) -> None:
    @patch.around(f"{_MANAGER}._before_backward", parameters=("self", "place"))
    def before(_: Any, self: Any, place: Any) -> None:
        if place.next is not None:
            patch.reached()
            self.launch_load(place.name)
            self.wait_load(place.name)


@fault(
    id="swap-load-behind-the-wait",
    symptom="Loads do not overlap: the next one starts when the layer's own has been waited for.",
    capability="activation_swap",
    layer="l1",
    must_fail=["SW-1-02"],
)
def load_behind_the_wait(patch: Patch) -> None:
    @patch.around(f"{_MANAGER}._before_backward", parameters=("self", "place"))
    def before(_: Any, self: Any, place: Any) -> None:
        if place.next is not None:
            self.wait_load(place.name)
        if place.previous is not None:
            patch.reached()
            self.launch_load(place.previous)


@fault(
    id="swap-copies-hold-the-computation-up",
    symptom="Training with swap is as slow as with copies in the middle of it.",
    capability="activation_swap",
    layer="l1",
    must_fail=["SW-1-02"],
)
def copies_hold_the_computation_up(patch: Patch) -> None:
    @patch.around(f"{_TRANSFER}.__init__", parameters=("self", "direction", "device", "copies"))
    def init(original: Any, self: Any, *args: Any) -> None:
        original(self, *args)
        patch.reached()
        self.finish()


def _not_awaited(name: str, symptom: str, direction: str) -> None:
    @fault(id=name, symptom=symptom, capability="activation_swap", layer="l1", must_fail=["SW-1-02"])
    def not_awaited(patch: Patch) -> None:
        @patch.around(f"{_TRANSFER}.wait", parameters=("self",))
        def wait(original: Any, self: Any) -> None:
            if self._direction != direction:
                original(self)
                return
            patch.reached()


_not_awaited(
    "swap-load-not-awaited", "Now and then gradients are rubbish: backward begins before its tensors are there.", "load"
)
_not_awaited(
    "swap-offload-not-awaited", "Now and then gradients are rubbish: memory is free before it was copied.", "offload"
)


@fault(
    id="swap-turn-left-over",
    symptom="What the head saves goes into the last layer's group, and comes back with it.",
    capability="activation_swap",
    layer="l1",
    must_fail=["SW-1-02"],
)
def turn_left_over(patch: Patch) -> None:
    @patch.around(f"{_MANAGER}._end", parameters=("self", "layer"))
    def end(_: Any, self: Any, layer: Any) -> None:
        patch.reached()
        self._inside.clear()


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


@fault(
    id="swap-failed-copy-unnoticed",
    symptom="When host memory runs out, gradients are rubbish and nobody is told.",
    capability="activation_swap",
    layer="l1",
    must_fail=["SW-1-02"],
)
def failed_copy_unnoticed(patch: Patch) -> None:
    @patch.around(f"{_TRANSFER}.wait", parameters=("self",))
    def wait(original: Any, self: Any) -> None:
        self.finish()
        if self._failure is not None:
            patch.reached()
            self._failure = None
        original(self)

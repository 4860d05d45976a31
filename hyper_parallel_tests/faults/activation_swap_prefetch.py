"""Faults of activation swap on torch_native: when groups move, and whose turn it is."""

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


@fault(
    id="swap-failed-launch-counts-as-copied",
    symptom="When no copy can be started, the step is tried again and its gradients are rubbish.",
    capability="activation_swap",
    layer="l1",
    must_fail=["SW-1-02"],
)
def failed_launch_counts_as_copied(patch: Patch) -> None:
    @patch.around(f"{_OURS}.saved:_offload", parameters=("leaving", "device"))
    def offload(original: Any, leaving: list[Any], device: Any) -> None:
        try:
            original(leaving, device)
        except RuntimeError:
            patch.reached()
            for saved in leaving:
                saved.there = saved.here._replace(storage=saved.here.storage.clone().fill_(0x7F))
            raise

    @patch.around(f"{_OURS}.saved:SwapGroup._wait", parameters=("self", "state", "end", "otherwise"))
    def wait(original: Any, self: Any, state: Any, end: Any, otherwise: Any) -> None:
        for saved in self._in(state):
            if saved.transfer is None:
                end(saved)
        original(self, state, end, otherwise)


@fault(
    id="swap-latest-copy-alone-awaited",
    symptom="Gradients are rubbish where a group was launched twice: only the second copies are waited for.",
    capability="activation_swap",
    layer="l1",
    must_fail=["SW-1-02"],
)
def latest_copy_alone_awaited(patch: Patch) -> None:
    @patch.around(f"{_OURS}.saved:SwapGroup._wait", parameters=("self", "state", "end", "otherwise"))
    def wait(original: Any, self: Any, state: Any, end: Any, otherwise: Any) -> None:
        moving = self._in(state)
        if len({saved.transfer for saved in moving}) < 2:
            original(self, state, end, otherwise)
            return
        patch.reached()
        moving[-1].transfer.wait()
        for saved in moving:
            end(saved)


@fault(
    id="swap-recomputed-layers-move",
    symptom="With checkpointed layers, backward offloads what it has just computed once more.",
    capability="activation_swap",
    layer="l1",
    must_fail=["SW-1-02"],
)
def recomputed_layers_move(patch: Patch) -> None:
    @patch.around(f"{_OURS}.manager:_in_backward")
    def in_backward(original: Any) -> bool:
        if original():
            patch.reached()
        return False


@fault(
    id="swap-turn-of-the-outer-layer-lost",
    symptom="What a block saves behind a layer in it is in nobody's group and stays on the device.",
    capability="activation_swap",
    layer="l1",
    must_fail=["SW-1-02"],
)
def turn_of_the_outer_layer_lost(patch: Patch) -> None:
    @patch.around(f"{_MANAGER}._end", parameters=("self", "layer"))
    def end(original: Any, self: Any, layer: Any) -> None:
        outermost = self._inside[0][1] if self._inside else None
        if len(self._inside) > 1:
            patch.reached()
        original(self, layer)
        if outermost is not None:
            self._current = outermost

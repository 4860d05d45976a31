"""Faults of selective offload on torch_native: what comes back from the host."""

from __future__ import annotations

from typing import Any

from hyper_parallel_tests.faults import Patch, fault

_OURS = "hyper_parallel_tests.engines.torch_native.selective_offload"
_OFFLOAD = f"{_OURS}.model:Offload"
_STATE = f"{_OURS}.state:SwapOptimizer"
_MOVING = f"{_OURS}.moving"


@fault(
    id="offload-stale-state",
    symptom="From the second step on, momentum is that of the first step.",
    capability="selective_offload",
    layer="l2",
    must_fail=["OP-2-02"],
)
def stale_state(patch: Patch) -> None:
    @patch.around(f"{_STATE}._leave", parameters=("self", "parameters"))
    def leave(original: Any, self: Any, parameters: Any) -> None:
        original(self, parameters)
        first = vars(self).setdefault("first", {})
        for parameter, aways in self._away.items():
            for key, away in aways.items():
                if first.setdefault((parameter, key), away) is not away:
                    patch.reached()
                    aways[key] = first[parameter, key]


@fault(
    id="offload-stale-parameters",
    symptom="Parameters are those of the first step for ever: what a step has changed is not copied to the host.",
    capability="selective_offload",
    layer="l2",
    must_fail=["OP-2-02"],
)
def stale_parameters(patch: Patch) -> None:
    @patch.around(f"{_MOVING}:Slot.leave", parameters=("self",))
    def leave(original: Any, self: Any) -> None:
        original(self)
        if not hasattr(self, "first"):
            self.first = self._there
        if self.first is not self._there:
            patch.reached()
            self._there = self.first


@fault(
    id="offload-gradients-not-brought-back",
    symptom="The loss does not move: the optimizer finds no gradients.",
    capability="selective_offload",
    layer="l2",
    must_fail=["OP-2-02"],
)
def gradients_not_brought_back(patch: Patch) -> None:
    @patch.around(f"{_OFFLOAD}._load_gradients", parameters=("self", "parameters"))
    def load(_: Any, self: Any, parameters: Any) -> None:
        for one in list(parameters):
            if self._gradients.pop(one, None) is not None:
                patch.reached()


@fault(
    id="offload-accumulation-lost",
    symptom="Of a step of several backwards only the first one's gradients count.",
    capability="selective_offload",
    layer="l2",
    must_fail=["OP-2-02"],
)
def accumulation_lost(patch: Patch) -> None:
    @patch.around(f"{_MOVING}:Away.add", parameters=("self", "other"))
    def add(_: Any, self: Any, other: Any) -> None:
        patch.reached()


@fault(
    id="offload-cleared-gradients-stay",
    symptom="Gradients that were cleared on the device are still on the host, and are added to the next ones.",
    capability="selective_offload",
    layer="l2",
    must_fail=["OP-2-02"],
)
def cleared_gradients_stay(patch: Patch) -> None:
    @patch.around(f"{_OFFLOAD}._clearing", parameters=("self", "_", "original"))
    def clearing(_: Any, self: Any, owner: Any, original: Any) -> Any:
        patch.reached()
        return lambda owner, set_to_none=True: original(set_to_none)


@fault(
    id="offload-loads-not-awaited",
    symptom="Now and then a step is made with what was in the memory before.",
    capability="selective_offload",
    layer="l2",
    must_fail=["OP-2-02"],
)
def loads_not_awaited(patch: Patch) -> None:
    @patch.around(f"{_MOVING}:Transfer.wait", parameters=("self",))
    def wait(original: Any, self: Any) -> None:
        if self._direction == "load":
            patch.reached()
        else:
            original(self)


@fault(
    id="offload-saves-what-is-not-there",
    symptom="Checkpoints hold NaN for every parameter that is on the host.",
    capability="selective_offload",
    layer="l2",
    must_fail=["OP-2-02"],
)
def saves_what_is_not_there(patch: Patch) -> None:
    @patch.around(f"{_OFFLOAD}._copied", parameters=("self", "module", "state_dict"))
    def copied(*_: Any) -> None:
        patch.reached()


@fault(
    id="offload-end-leaves-parameters-away",
    symptom="After offload is taken off, parameters are NaN.",
    capability="selective_offload",
    layer="l2",
    must_fail=["OP-2-02"],
)
def end_leaves_parameters_away(patch: Patch) -> None:
    @patch.around(f"{_OFFLOAD}.remove", parameters=("self",))
    def remove(original: Any, self: Any) -> None:
        patch.reached()
        self._slots = {}
        original(self)


@fault(
    id="offload-options-of-the-start",
    symptom="A schedule writes learning rates that no step reads.",
    capability="selective_offload",
    layer="l2",
    must_fail=["OP-2-02"],
)
def options_of_the_start(patch: Patch) -> None:
    @patch.around(f"{_STATE}._step", parameters=("self", "batch"))
    def step(original: Any, self: Any, batch: Any) -> None:
        first = vars(self).setdefault("first_options", [_options(group) for group in self.param_groups])
        now = [_options(group) for group in self.param_groups]
        if now != first:
            patch.reached()
        for group, options in zip(self.param_groups, first, strict=True):
            group.update(options)
        original(self, batch)
        for group, options in zip(self.param_groups, now, strict=True):
            group.update(options)


def _options(group: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in group.items() if key != "params"}

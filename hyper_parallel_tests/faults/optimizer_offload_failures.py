"""Faults of selective offload on torch_native: what failures and other calls leave on the device, or on the host."""

from __future__ import annotations

import sys
from typing import Any

import torch

from hyper_parallel_tests.faults import Patch, fault

_OURS = "hyper_parallel_tests.engines.torch_native.selective_offload"
_OFFLOAD = f"{_OURS}.model:Offload"
_STATE = f"{_OURS}.state:SwapOptimizer"
_MOVING = f"{_OURS}.moving"


@fault(
    id="offload-failed-step-keeps-the-next-batch",
    symptom="After a step that failed, the batch that was on its way stays on the device.",
    capability="selective_offload",
    layer="l2",
    must_fail=["OP-2-02"],
)
def failed_step_keeps_the_next_batch(patch: Patch) -> None:
    @patch.around(f"{_MOVING}:Away.stay", parameters=("self",))
    def stay(_: Any, self: Any) -> None:
        if self._coming is not None:
            patch.reached()
        self.wait()


@fault(
    id="offload-failed-batch-goes-back",
    symptom="After a step that failed, a parameter that was stepped has the state of before.",
    capability="selective_offload",
    layer="l2",
    must_fail=["OP-2-02"],
)
def failed_batch_goes_back(patch: Patch) -> None:
    @patch.around(f"{_STATE}._step", parameters=("self", "batch"))
    def step(original: Any, self: Any, batch: Any) -> None:
        before = {one: {key: value.clone() for key, value in self.state.get(one, {}).items()} for one in batch}
        try:
            original(self, batch)
        except Exception:
            patch.reached()
            self.state.update(before)
            raise


@fault(
    id="offload-failed-step-keeps-parameters",
    symptom="After a step that failed, all its parameters stay on the device.",
    capability="selective_offload",
    layer="l2",
    must_fail=["OP-2-02"],
)
def failed_step_keeps_parameters(patch: Patch) -> None:
    @patch.around(f"{_OFFLOAD}._leave", parameters=("self", "parameters"))
    def leave(original: Any, self: Any, parameters: Any) -> None:
        if sys.exc_info()[0] is None:
            original(self, parameters)
        else:
            patch.reached()


@fault(
    id="offload-failed-pass-keeps-parameters",
    symptom="After a forward that failed, parameters stay on the device for good.",
    capability="selective_offload",
    layer="l2",
    must_fail=["OP-2-02"],
)
def failed_pass_keeps_parameters(patch: Patch) -> None:
    @patch.around(f"{_OFFLOAD}._follow", parameters=("self", "module", "slots"))
    def follow(original: Any, self: Any, module: Any, slots: Any) -> None:
        original(self, module, slots)
        patch.reached()
        module._forward_hooks_always_called.clear()


@fault(
    id="offload-evaluation-keeps-parameters",
    symptom="After an evaluation all parameters are on the device.",
    capability="selective_offload",
    layer="l2",
    must_fail=["OP-2-02"],
)
def evaluation_keeps_parameters(patch: Patch) -> None:
    @patch.around(f"{_MOVING}:Slot.leave", parameters=("self",))
    def leave(original: Any, self: Any) -> None:
        if torch.is_grad_enabled():
            original(self)
        else:
            patch.reached()


@fault(
    id="offload-loading-keeps-parameters",
    symptom="After a checkpoint is loaded all parameters are on the device.",
    capability="selective_offload",
    layer="l2",
    must_fail=["OP-2-02"],
)
def loading_keeps_parameters(patch: Patch) -> None:
    @patch.around("torch.nn:Module.register_load_state_dict_post_hook", parameters=("self", "hook"))
    def register(original: Any, self: Any, hook: Any) -> Any:
        patch.reached()
        return original(self, lambda *_: None)


@fault(
    id="offload-reads-as-zero",
    symptom="What uses a parameter that is away computes with zeros, and nobody sees it.",
    capability="selective_offload",
    layer="l2",
    must_fail=["OP-2-02"],
)
def reads_as_zero(patch: Patch) -> None:
    @patch.around(f"{_MOVING}:Slot.__init__", parameters=("self", "parameter"))
    def init(original: Any, self: Any, parameter: Any) -> None:
        original(self, parameter)
        patch.reached()
        self._nothing.zero_()


@fault(
    id="offload-saving-keeps-state",
    symptom="After a checkpoint is saved the optimizer's state is on the device.",
    capability="selective_offload",
    layer="l2",
    must_fail=["OP-2-02"],
)
def saving_keeps_state(patch: Patch) -> None:
    _brings_back(patch, "state_dict")


@fault(
    id="offload-loading-keeps-state",
    symptom="After a checkpoint is loaded the optimizer's state is on the device.",
    capability="selective_offload",
    layer="l2",
    must_fail=["OP-2-02"],
)
def loading_keeps_state(patch: Patch) -> None:
    _brings_back(patch, "load_state_dict")


@fault(
    id="offload-existing-state-stays",
    symptom="State of steps before the optimizer was swapped is on the device until the next one.",
    capability="selective_offload",
    layer="l2",
    must_fail=["OP-2-02"],
)
def existing_state_stays(patch: Patch) -> None:
    _brings_back(patch, "__init__")


def _brings_back(patch: Patch, call: str) -> None:
    """Has state be on the device behind a call."""

    @patch.around(f"{_STATE}.{call}", parameters=("self",))
    def method(original: Any, self: Any, *args: Any) -> Any:
        result = original(self, *args)
        if self._away:
            patch.reached()
        self._back(self._parameters())
        return result


@fault(
    id="offload-copies-pile-up",
    symptom="The host runs out of memory after some thousand steps: copies are never let go of.",
    capability="selective_offload",
    layer="l2",
    must_fail=["OP-2-02"],
)
def copies_pile_up(patch: Patch) -> None:
    kept: list[Any] = []
    patch.at_the_end(kept.clear)

    @patch.around(f"{_MOVING}:host_part", parameters=("tensor",))
    def part(original: Any, tensor: Any) -> Any:
        patch.reached()
        kept.append(original(tensor))
        return kept[-1]

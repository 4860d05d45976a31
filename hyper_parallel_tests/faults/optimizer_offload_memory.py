"""Faults of selective offload on torch_native: what is on the device when it need not be."""

from __future__ import annotations

from typing import Any

from hyper_parallel_tests.faults import Patch, fault

_OURS = "hyper_parallel_tests.engines.torch_native.selective_offload"
_OFFLOAD = f"{_OURS}.model:Offload"
_STATE = f"{_OURS}.state:SwapOptimizer"
_MOVING = f"{_OURS}.moving"


def _never(patch: Patch, target: str, *parameters: str, result: Any = None) -> None:
    """Has a function do nothing."""

    @patch.around(target, parameters=parameters)
    def call(*_: Any) -> Any:
        patch.reached()
        return result


@fault(
    id="offload-state-stays",
    symptom="The optimizer is swapped, training is right, and memory is as without.",
    capability="selective_offload",
    layer="l2",
    must_fail=["OP-2-02"],
)
def state_stays(patch: Patch) -> None:
    _never(patch, f"{_STATE}._swapped", "self", "key", "value", result=False)


@fault(
    id="offload-parameters-stay",
    symptom="Parameters are chosen, training is right, and memory is as without.",
    capability="selective_offload",
    layer="l2",
    must_fail=["OP-2-02"],
)
def parameters_stay(patch: Patch) -> None:
    _never(patch, f"{_MOVING}:Slot.leave", "self")


@fault(
    id="offload-gradients-stay",
    symptom="Gradients are chosen, training is right, and memory is as without.",
    capability="selective_offload",
    layer="l2",
    must_fail=["OP-2-02"],
)
def gradients_stay(patch: Patch) -> None:
    _never(patch, f"{_OFFLOAD}._gradient_complete", "self", "parameter")


@fault(
    id="offload-device-memory-kept",
    symptom="Copies are on the host, and the originals on the device all the same.",
    capability="selective_offload",
    layer="l2",
    must_fail=["OP-2-02"],
)
def device_memory_kept(patch: Patch) -> None:
    @patch.around(f"{_MOVING}:Away.__init__", parameters=("self", "tensor"))
    def init(original: Any, self: Any, tensor: Any) -> None:
        patch.reached()
        self.kept = tensor
        original(self, tensor)


@fault(
    id="offload-all-state-comes-at-once",
    symptom="Memory at the beginning of a step is as without offload.",
    capability="selective_offload",
    layer="l2",
    must_fail=["OP-2-02"],
)
def all_state_comes_at_once(patch: Patch) -> None:
    @patch.around(f"{_STATE}._come", parameters=("self", "parameters"))
    def come(original: Any, self: Any, parameters: Any) -> None:
        patch.reached()
        original(self, self._parameters())


@fault(
    id="offload-one-batch",
    symptom="A step is one batch, however many were asked for.",
    capability="selective_offload",
    layer="l2",
    must_fail=["OP-2-02"],
)
def one_batch(patch: Patch) -> None:
    @patch.around(f"{_STATE}.batches", parameters=("self",))
    def batches(original: Any, self: Any) -> Any:
        found = original(self)
        if len(found) > 1:
            patch.reached()
        return [[one for batch in found for one in batch]]


@fault(
    id="offload-small-state-moves-too",
    symptom="Each step waits for hundreds of copies of a few bytes.",
    capability="selective_offload",
    layer="l2",
    must_fail=["OP-2-02"],
)
def small_state_moves_too(patch: Patch) -> None:
    @patch.around(f"{_STATE}._swapped", parameters=("self", "key", "value"))
    def swapped(original: Any, self: Any, key: str, value: Any) -> bool:
        if original(self, key, value) or key == "step":
            return original(self, key, value)
        patch.reached()
        return True


@fault(
    id="offload-all-layers-come-at-once",
    symptom="Memory in forward is as without offload: the first layer brings all parameters.",
    capability="selective_offload",
    layer="l2",
    must_fail=["OP-2-02"],
)
def all_layers_come_at_once(patch: Patch) -> None:
    @patch.around(f"{_OFFLOAD}._follow", parameters=("self", "module", "slots"))
    def follow(original: Any, self: Any, module: Any, slots: Any) -> None:
        patch.reached()
        original(self, module, list(self._slots.values()))

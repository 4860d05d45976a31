"""Faults of selective offload on torch_native: clearing, closures, and its end."""

from __future__ import annotations

from typing import Any

from hyper_parallel_tests.faults import Patch, fault

_OURS = "hyper_parallel_tests.engines.torch_native.selective_offload"
_OFFLOAD = f"{_OURS}.model:Offload"
_STATE = f"{_OURS}.state:SwapOptimizer"


def _clearing(patch: Patch, zero_grad: Any) -> None:
    """Has `zero_grad(offload, original, owner, set_to_none)` stand for that of model and optimizers."""

    @patch.around(f"{_OFFLOAD}._clearing", parameters=("self", "_", "original"))
    def clearing(_: Any, self: Any, owner: Any, original: Any) -> Any:
        def stand_in(owner: Any, set_to_none: bool = True) -> None:
            zero_grad(self, original, owner, set_to_none)

        return stand_in


@fault(
    id="offload-one-optimizer-clears-all",
    symptom="Clearing one optimizer's gradients loses those of the other's parameters that are on the host.",
    capability="selective_offload",
    layer="l2",
    must_fail=["OP-2-02"],
)
def one_optimizer_clears_all(patch: Patch) -> None:
    def zero_grad(offload: Any, original: Any, _: Any, set_to_none: bool) -> None:
        patch.reached()
        for one in list(offload._gradients):
            if set_to_none:
                del offload._gradients[one]
            else:
                offload._gradients[one].clear()
        original(set_to_none)

    _clearing(patch, zero_grad)


@fault(
    id="offload-zeros-become-none",
    symptom="Gradients that were to be zeros are None on the host, and their parameters neither decay nor go on.",
    capability="selective_offload",
    layer="l2",
    must_fail=["OP-2-02"],
)
def zeros_become_none(patch: Patch) -> None:
    def zero_grad(offload: Any, original: Any, owner: Any, set_to_none: bool) -> None:
        groups = getattr(owner, "param_groups", [{"params": list(offload._gradients)}])
        for one in [one for group in groups for one in group["params"]]:
            if offload._gradients.pop(one, None) is not None and not set_to_none:
                patch.reached()
        original(set_to_none)

    _clearing(patch, zero_grad)


@fault(
    id="offload-closures-send-away",
    symptom="A step that makes its passes by a closure finds no gradients: they have left behind its backward.",
    capability="selective_offload",
    layer="l2",
    must_fail=["OP-2-02"],
)
def closures_send_away(patch: Patch) -> None:
    @patch.around(f"{_OFFLOAD}._bring", parameters=("self", "parameters"))
    def bring(original: Any, self: Any, parameters: Any) -> None:
        if any(one.grad is None and one in self._gradients for one in parameters):
            patch.reached()
            self._arrive(parameters)
            return
        original(self, parameters)


@fault(
    id="offload-swap-counts-gradients-before-the-closure",
    symptom="A swapped optimizer steps what had a gradient before its closure: at first nothing.",
    capability="selective_offload",
    layer="l2",
    must_fail=["OP-2-02"],
)
def swap_counts_gradients_before_the_closure(patch: Patch) -> None:
    @patch.around(f"{_STATE}.step", parameters=("self", "closure"))
    def step(original: Any, self: Any, closure: Any = None) -> Any:
        if closure is None:
            return original(self)
        patch.reached()
        original(self)
        return closure()


@fault(
    id="offload-end-forgets-the-pass",
    symptom="Taken off between forward and backward, parameters leave behind that backward and never come back.",
    capability="selective_offload",
    layer="l2",
    must_fail=["OP-2-02"],
)
def end_forgets_the_pass(patch: Patch) -> None:
    @patch.around(f"{_OFFLOAD}.remove", parameters=("self",))
    def remove(original: Any, self: Any) -> None:
        slots = self._slots
        original(self)
        if slots:
            patch.reached()
            self._slots = slots


@fault(
    id="offload-end-leaves-hooks",
    symptom="After offload is taken off, gradients still leave.",
    capability="selective_offload",
    layer="l2",
    must_fail=["OP-2-02"],
)
def end_leaves_hooks(patch: Patch) -> None:
    @patch.around(f"{_OFFLOAD}.remove", parameters=("self",))
    def remove(original: Any, self: Any) -> None:
        patch.reached()
        self._handles.pop(-4)
        original(self)

"""Faults of activation swap on torch_native: what may be swapped, plans, and generated policies."""

from __future__ import annotations

from typing import Any

from torch import nn

from hyper_parallel_tests.faults import Patch, fault

_OURS = "hyper_parallel_tests.engines.torch_native.activation_swap"


@fault(
    id="swap-views-of-parameters-eligible",
    symptom="Weights leave the device with the activations, and the optimizer updates what is not there.",
    capability="activation_swap",
    layer="l0",
    must_fail=["SW-0-01"],
)
def views_of_parameters_eligible(patch: Patch) -> None:
    @patch.around(f"{_OURS}:base_check_fn", parameters=("tensor", "min_bytes", "dtypes"))
    def check(original: Any, tensor: Any, **options: Any) -> bool:
        if isinstance(tensor._base, nn.Parameter):
            patch.reached()
            return True
        return original(tensor, **options)


@fault(
    id="swap-size-of-the-view-counts",
    symptom="Large storages stay on the device since only small parts of them are saved.",
    capability="activation_swap",
    layer="l0",
    must_fail=["SW-0-01"],
)
def size_of_the_view_counts(patch: Patch) -> None:
    @patch.around(f"{_OURS}:base_check_fn", parameters=("tensor", "min_bytes", "dtypes"))
    def check(original: Any, tensor: Any, *, min_bytes: int = 1, **options: Any) -> bool:
        if tensor.nbytes < min_bytes:
            patch.reached()
            return False
        return original(tensor, min_bytes=min_bytes, **options)


@fault(
    id="swap-capacity-exceeded-by-the-last-layer",
    symptom="The pool overflows: a group takes one layer more than there is room for.",
    capability="activation_swap",
    layer="l0",
    must_fail=["SW-0-01"],
)
def capacity_exceeded_by_the_last_layer(patch: Patch) -> None:
    @patch.around(f"{_OURS}:plan_swap_groups", parameters=("layer_bytes", "capacity"))
    def plan(original: Any, layer_bytes: Any, capacity: int) -> Any:
        groups = original(layer_bytes, capacity)
        if len(groups) < 2:
            return groups
        patch.reached()
        return (groups[0] + groups[1][:1], *([groups[1][1:]] if groups[1][1:] else []), *groups[2:])


@fault(
    id="swap-load-planned-late",
    symptom="Backward waits for each layer's tensors: their copies start when they are needed.",
    capability="activation_swap",
    layer="l0",
    must_fail=["SW-0-01"],
)
def load_planned_late(patch: Patch) -> None:
    @patch.around(f"{_OURS}:plan_swap_steps", parameters=("groups",))
    def plan(original: Any, groups: int) -> list[str]:
        late = []
        for step in original(groups):
            if "launch_load" in step:
                patch.reached()
                continue
            if "wait_load" in step:
                late.append(step.replace("wait", "launch"))
            late.append(step)
        return late


@fault(
    id="swap-policy-forgets-what-is-on-its-way",
    symptom="A generated policy runs out of memory: what is fetched early is not in its budget.",
    capability="activation_swap",
    layer="l0",
    must_fail=["SW-0-02"],
)
def policy_forgets_what_is_on_its_way(patch: Patch) -> None:
    @patch.around(f"{_OURS}.planning:height", parameters=("layer_bytes", "swapped"))
    def height(_: Any, layer_bytes: Any, swapped: Any) -> int:
        patch.reached()
        left = [0 if name in swapped else size for name, size in layer_bytes.items()]
        return max((sum(left[:turn]) + size for turn, size in enumerate(layer_bytes.values())), default=0)


@fault(
    id="swap-policy-begins-with-the-last-layer",
    symptom="Backward begins with a wait: the last layer's tensors were just sent away.",
    capability="activation_swap",
    layer="l0",
    must_fail=["SW-0-02"],
)
def policy_begins_with_the_last_layer(patch: Patch) -> None:
    @patch.around(f"{_OURS}.planning:candidates", parameters=("layer_bytes",))
    def candidates(_: Any, layer_bytes: Any) -> list[str]:
        patch.reached()
        return list(layer_bytes)[::-1]


@fault(
    id="swap-policy-of-the-model-before",
    symptom="The second model of a process swaps layers that its budget does not ask for.",
    capability="activation_swap",
    layer="l0",
    must_fail=["SW-0-02"],
)
def policy_of_the_model_before(patch: Patch) -> None:
    before: set[str] = set()

    @patch.around(f"{_OURS}:generate_swap_policy", parameters=("layer_bytes", "memory_budget"))
    def generate(original: Any, layer_bytes: Any, memory_budget: int) -> Any:
        before.update(original(layer_bytes, memory_budget))
        patch.reached()
        return tuple(name for name in layer_bytes if name in before)

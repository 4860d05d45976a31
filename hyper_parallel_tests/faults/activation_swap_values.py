"""Faults of activation swap on torch_native: what comes back from the host, and what a failed step leaves."""

from __future__ import annotations

from typing import Any

from hyper_parallel_tests.faults import Patch, fault

_OURS = "hyper_parallel_tests.engines.torch_native.activation_swap"


@fault(
    id="swap-host-memory-shared",
    symptom="Gradients of all layers but one are wrong: tensors of one size share their host memory.",
    capability="activation_swap",
    layer="l2",
    must_fail=["SW-2-01"],
)
def host_memory_shared(patch: Patch) -> None:
    by_size: dict[int, Any] = {}

    @patch.around(f"{_OURS}.saved:host_storage", parameters=("size", "device"))
    def storage(original: Any, size: int, device: Any) -> Any:
        if size in by_size:
            patch.reached()
        return by_size.setdefault(size, original(size, device))


@fault(
    id="swap-values-of-the-step-before",
    symptom="From the second step on, gradients are those of the step before.",
    capability="activation_swap",
    layer="l2",
    must_fail=["SW-2-01"],
)
def values_of_the_step_before(patch: Patch) -> None:
    seen: list[Any] = []

    @patch.around(f"{_OURS}.saved:_offload", parameters=("leaving", "device"))
    def offload(original: Any, leaving: list[Any], device: Any) -> None:
        original(leaving, device)
        found = list(leaving)
        now = [saved.there for saved in found]
        for before in seen:
            if [one.size for one in before] == [one.size for one in now]:
                patch.reached()
                for saved, stale in zip(found, before, strict=True):
                    saved.there = stale
        seen.append(now)


@fault(
    id="swap-longer-step-cut",
    symptom="Gradients of batches that are longer than the first one are wrong.",
    capability="activation_swap",
    layer="l2",
    must_fail=["SW-2-01"],
)
def longer_step_cut(patch: Patch) -> None:
    longest = 0

    @patch.around(f"{_OURS}.copies:Transfer.__init__", parameters=("self", "direction", "device", "copies"))
    def init(original: Any, self: Any, direction: str, device: Any, copies: Any) -> None:
        nonlocal longest
        if not longest:
            longest = max(to.size for to, _ in copies)
        if any(to.size > longest for to, _ in copies):
            patch.reached()
        cut = [tuple(one._replace(size=min(one.size, longest)) for one in pair) for pair in copies]
        original(self, direction, device, cut)


@fault(
    id="swap-failed-forward-leaves-its-turn",
    symptom="After a step that was skipped for an error, tensors are in the wrong groups.",
    capability="activation_swap",
    layer="l2",
    must_fail=["SW-2-01"],
)
def failed_forward_leaves_its_turn(patch: Patch) -> None:
    @patch.around("torch.nn:Module.register_forward_hook", parameters=("self", "hook"))
    def register(original: Any, self: Any, hook: Any, **options: Any) -> Any:
        if options.pop("always_call", False):
            patch.reached()
        return original(self, hook, **options)

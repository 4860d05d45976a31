"""Faults of expert parallelism on torch_native: what a layer was told and does not heed, and how it is divided."""

from __future__ import annotations

from typing import Any

from hyper_parallel_tests.faults import Patch, fault

_OURS = "hyper_parallel_tests.engines.torch_native.expert_parallel"


@fault(
    id="ep-layer-forgets-its-scale",
    symptom="A model of DeepSeek's kind has feed-forwards weaker by its routed scaling factor.",
    capability="expert_parallel",
    layer="l0",
    must_fail=["EP-0-01"],
)
def layer_forgets_its_scale(patch: Patch) -> None:
    @patch.around(f"{_OURS}.layer:route_tokens", parameters=("logits", "top_k"))
    def route(original: Any, logits: Any, top_k: int, *, route_scale: float = 1.0, **options: Any) -> Any:
        if route_scale != 1.0:
            patch.reached()
        return original(logits, top_k, **options)


@fault(
    id="ep-layer-always-drops-the-last",
    symptom="With a capacity the last tokens of a batch lose their experts, although those that matter least should.",
    capability="expert_parallel",
    layer="l0",
    must_fail=["EP-0-01"],
)
def layer_always_drops_the_last(patch: Patch) -> None:
    @patch.around(f"{_OURS}.layer:kept_assignments", parameters=("routing", "capacity"))
    def kept(original: Any, routing: Any, capacity: int, *, drop_policy: str = "position") -> Any:
        if drop_policy != "position":
            patch.reached()
        return original(routing, capacity)


@fault(
    id="ep-vanished-scores-divide-by-zero",
    symptom="After thousands of steps with sigmoid scores the loss is NaN, on the first token that no expert wants.",
    capability="expert_parallel",
    layer="l0",
    must_fail=["EP-0-01"],
)
def vanished_scores_divide_by_zero(patch: Patch) -> None:
    @patch.around(f"{_OURS}:route_tokens", parameters=("logits", "top_k"))
    def route(original: Any, logits: Any, top_k: int, *, route_norm: bool = False, **options: Any) -> Any:
        found = original(logits, top_k, **options)
        if not route_norm:
            return found
        sums = found.weights.sum(-1, keepdim=True)
        if (sums == 0).any():
            patch.reached()
        return found._replace(weights=found.weights / sums * options.get("route_scale", 1.0))


@fault(
    id="ep-parts-of-a-module-stay-whole",
    symptom="Experts kept in a submodule are those of the first rank on every rank, and memory does not fall.",
    capability="expert_parallel",
    layer="l0",
    must_fail=["EP-0-03"],
)
def parts_of_a_module_stay_whole(patch: Patch) -> None:
    @patch.around(f"{_OURS}.styles:_divide", parameters=("module", "device_mesh", "placements"))
    def divide(original: Any, module: Any, *others: Any) -> None:
        parts = dict(module._modules)
        if parts:
            patch.reached()
        module._modules.clear()
        try:
            original(module, *others)
        finally:
            module._modules.update(parts)


@fault(
    id="ep-divided-a-second-time",
    symptom="A model that two functions of a trainer divide has a fraction of its experts, and sends its rows twice.",
    capability="expert_parallel",
    layer="l0",
    must_fail=["EP-0-03"],
)
def divided_a_second_time(patch: Patch) -> None:
    @patch.around(f"{_OURS}.styles:_divide", parameters=("module", "device_mesh", "placements"))
    def divide(original: Any, module: Any, *others: Any) -> None:
        if any(hasattr(one, "to_local") for one in module.parameters()):
            patch.reached()
            return
        original(module, *others)

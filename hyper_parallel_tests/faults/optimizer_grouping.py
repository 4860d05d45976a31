"""Faults of optimizers on torch_native: parameters that are somebody else's, and options that are not theirs."""

from __future__ import annotations

from typing import Any

from hyper_parallel_tests.faults import Patch, fault

_OURS = "hyper_parallel_tests.engines.torch_native.optimizer"
_GROUPING = f"{_OURS}.grouping"


def _forget(patch: Patch, kind: str) -> None:
    """Has the rule not know of one kind of use."""

    @patch.around(f"{_GROUPING}:_uses", parameters=("model",))
    def uses(original: Any, model: Any) -> Any:
        found = original(model)
        for use in found:
            if getattr(use, kind) and use.parameter.ndim == 2:
                patch.reached()
                setattr(use, kind, False)
        return found


@fault(
    id="op-tables-to-muon",
    symptom="Embedding and head are orthogonalised, and rare tokens move as frequent ones do.",
    capability="optimizer",
    layer="l0",
    must_fail=["OP-0-01"],
)
def tables_to_muon(patch: Patch) -> None:
    _forget(patch, "table")


@fault(
    id="op-norm-matrices-to-muon",
    symptom="The scale of a norm over two dimensions is orthogonalised.",
    capability="optimizer",
    layer="l0",
    must_fail=["OP-0-01"],
)
def norm_matrices_to_muon(patch: Patch) -> None:
    _forget(patch, "norm")


@fault(
    id="op-first-name-decides",
    symptom="A weight that a hidden layer shares with an embedding is Muon's or AdamW's by the order of the modules.",
    capability="optimizer",
    layer="l0",
    must_fail=["OP-0-01"],
)
def first_name_decides(patch: Patch) -> None:
    @patch.around(f"{_GROUPING}:_uses", parameters=("model",))
    def uses(original: Any, model: Any) -> Any:
        found = original(model)
        for use in found:
            if len(use.names) > 1 and "hidden" in use.name:
                patch.reached()
                use.table = False
        return found


@fault(
    id="op-patterns-ignored",
    symptom="Parameters that were put to an optimizer by name stay where the rule puts them.",
    capability="optimizer",
    layer="l0",
    must_fail=["OP-0-01"],
)
def patterns_ignored(patch: Patch) -> None:
    @patch.around(f"{_GROUPING}:_owner", parameters=("use", "patterns"))
    def owner(original: Any, use: Any, patterns: Any) -> str:
        if any(patterns.values()):
            patch.reached()
        return original(use, {name: [] for name in patterns})


@fault(
    id="op-biases-decayed",
    symptom="Biases shrink with the weights.",
    capability="optimizer",
    layer="l0",
    must_fail=["OP-0-01"],
)
def biases_decayed(patch: Patch) -> None:
    @patch.around(f"{_GROUPING}:_groups", parameters=("uses",))
    def groups(original: Any, uses: Any) -> Any:
        found = original(uses)
        for group in found:
            if group.pop("weight_decay", None) is not None:
                patch.reached()
        return found


@fault(
    id="op-leftovers-not-told",
    symptom="Parameters without an optimizer stay as they are, and nobody says so.",
    capability="optimizer",
    layer="l0",
    must_fail=["OP-0-01"],
)
def leftovers_not_told(patch: Patch) -> None:
    @patch.around(f"{_GROUPING}:_owner", parameters=("use", "patterns"))
    def owner(original: Any, use: Any, patterns: Any) -> str:
        found = original(use, patterns)
        if found in patterns:
            return found
        patch.reached()
        return next(iter(patterns)) if use.parameter.ndim == 2 else found

    @patch.around(f"{_GROUPING}:_uses", parameters=("model",))
    def uses(original: Any, model: Any) -> Any:
        return [use for use in original(model) if use.parameter.ndim == 2]


@fault(
    id="op-wrapped-heads-to-muon",
    symptom="With activation checkpointing of the head, it is orthogonalised: its layer goes by the wrapper's name.",
    capability="optimizer",
    layer="l0",
    must_fail=["OP-0-01"],
)
def wrapped_heads_to_muon(patch: Patch) -> None:
    @patch.around(f"{_GROUPING}:bare_name", parameters=("model", "name"))
    def bare(original: Any, model: Any, name: str) -> str:
        if original(model, name) != name:
            patch.reached()
        return name


@fault(
    id="op-text-taken-for-patterns",
    symptom="One pattern without its list sends every parameter that has one of its letters.",
    capability="optimizer",
    layer="l0",
    must_fail=["OP-0-01"],
)
def text_taken_for_patterns(patch: Patch) -> None:
    @patch.around(f"{_OURS}:get_hyper_optimizer", parameters=("model",))
    def make(original: Any, model: Any, **given: Any) -> Any:
        for options in given.values():
            if options and isinstance(options.get("param_patterns"), str):
                patch.reached()
                options["param_patterns"] = list(options["param_patterns"])
        return original(model, **given)

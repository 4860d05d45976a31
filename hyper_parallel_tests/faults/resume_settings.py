"""Faults of configurations on torch_native: what is taken for something else, or not looked at."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from hyper_parallel_tests.faults import Patch, fault

_TRAINER = "hyper_parallel_tests.engines.torch_native.trainer"
_NODE = ("kind", "node", "path")


def _config(id: str, symptom: str) -> Any:
    return fault(id=f"resume-{id}", symptom=symptom, capability="resume", layer="l0", must_fail=["RS-0-01"])


@_config("unknown-keys-ignored", "A misspelt setting has its default, and nobody is told.")
def unknown_keys_ignored(patch: Patch) -> None:
    @patch.around(f"{_TRAINER}.config:_section", parameters=("kind", "raw", "path", "problems"))
    def section(original: Any, kind: Any, raw: Any, path: str, problems: list[str]) -> Any:
        known = {one.name for one in fields(kind)}
        if isinstance(raw, dict) and not raw.keys() <= known:
            patch.reached()
            raw = {key: value for key, value in raw.items() if key in known}
        return original(kind, raw, path, problems)


@_config("path-is-the-key-alone", "An error names `interval`, which three sections have.")
def path_is_the_key_alone(patch: Patch) -> None:
    @patch.around(f"{_TRAINER}.config:child", parameters=("path", "key"))
    def child(original: Any, path: str, key: str) -> str:
        patch.reached()
        return key


def _taken(id: str, symptom: str, type_: type, found: type) -> None:
    """Declares that values of one type are taken where another is expected."""

    @_config(id, symptom)
    def install(patch: Patch) -> None:
        @patch.around(f"{_TRAINER}.config:_as", parameters=("value", "type_"))
        def taken(original: Any, value: Any, wanted: Any) -> Any:
            if wanted is type_ and type(value) is found and value != "two":
                patch.reached()
                return type_(value)
            return original(value, wanted)


_taken("true-is-one", "`tp: true` trains with a degree of one.", int, bool)
_taken("one-is-true", "`shuffle: 1` is taken, and `shuffle: 2` as well.", bool, int)
_taken("fractions-of-ranks", "`tp: 2.5` trains with a degree of two.", int, float)
_taken("text-for-numbers", "`tp: '2'` is taken, and `tp: ''` ends in a traceback.", int, str)


def _scalar(id: str, symptom: str, words: dict[str, Any]) -> None:
    """Declares that plain words are read as version 1.1 of YAML, or as a shell has them."""

    @_config(id, symptom)
    def install(patch: Patch) -> None:
        @patch.around(f"{_TRAINER}.yaml_text:_scalar", parameters=_NODE)
        def scalar(original: Any, kind: str, node: Any, path: str) -> Any:
            if node.style is None and node.value in words:
                patch.reached()
                return words[node.value]
            return original(kind, node, path)


_scalar("yes-is-true", "A folder called `no` is the truth value.", {"yes": True, "no": False, "NO": False})
_scalar("leading-zero-is-octal", "`steps: 010` trains eight steps.", {"010": 8})
_scalar("exponent-without-point-is-text", "`lr: 1e-3` is refused.", {"1e-3": "1e-3", "1E2": "1E2"})
_scalar("sexagesimal", "A folder called `1:30` is the number 90.", {"1:30": 90})


@_config("last-of-two-counts", "A section that is given twice has only its second half.")
def last_of_two_counts(patch: Patch) -> None:
    @patch.around(f"{_TRAINER}.yaml_text:_pairs", parameters=("node", "path"))
    def pairs(original: Any, node: Any, path: str) -> Any:
        by_name = {key.value: (key, value) for key, value in node.value if isinstance(key.value, str)}
        if len(by_name) < len(node.value) and all(isinstance(key.value, str) for key, _ in node.value):
            patch.reached()
            node.value = list(by_name.values())
        return original(node, path)


@_config("aliases-read-each-time", "A short text takes all memory.")
def aliases_read_each_time(patch: Patch) -> None:
    @patch.around(f"{_TRAINER}.yaml_text:_value", parameters=("node", "path", "known", "open_"))
    def value(original: Any, node: Any, path: str, known: Any, open_: set[int]) -> Any:
        if id(node) in open_:
            # Without an end, so the first round is shown.
            patch.reached()
            return []
        return original(node, path, known, open_)


@_config("values-not-looked-at", "`steps: 0`, a learning rate that is no number and an unknown name are taken.")
def values_not_looked_at(patch: Patch) -> None:
    @patch.around(f"{_TRAINER}.config:_setting", parameters=("value", "type_", "rules"))
    def setting(original: Any, value: Any, type_: Any, rules: Any) -> Any:
        patch.reached()
        return original(value, type_, ())


@_config("contradictions-not-looked-at", "A run that is to save has nowhere to, and says so after the first interval.")
def contradictions_not_looked_at(patch: Patch) -> None:
    @patch.around(f"{_TRAINER}.config:_contradictions", parameters=("config",))
    def contradictions(original: Any, config: Any) -> Any:
        patch.reached()
        return ()


@_config("lists-not-written", "A run's file does not tell its callbacks.")
def lists_not_written(patch: Patch) -> None:
    @patch.around(f"{_TRAINER}.yaml_text:dump", parameters=("value",))
    def dump(original: Any, value: Any) -> str:
        patch.reached()
        return original({key: one for key, one in value.items() if not isinstance(one, list)})


@_config("override-changes-the-alias", "An override of one section changes another one that was written as its alias.")
def override_changes_the_alias(patch: Patch) -> None:
    @patch.around(f"{_TRAINER}.config:_overridden", parameters=("raw", "override"))
    def overridden(original: Any, raw: Any, override: str) -> Any:
        found = original(raw, override)
        for key, section in raw.items():
            if isinstance(section, dict) and isinstance(found[key], dict) and found[key] is not section:
                patch.reached()
                section |= found[key]
        return raw | found | {key: one for key, one in raw.items() if isinstance(one, dict)}


@_config("product-not-looked-at", "Ranks that no degree uses train all the same, each on its own.")
def product_not_looked_at(patch: Patch) -> None:
    @patch.around(f"{_TRAINER}.config:_degrees", parameters=("degrees", "world_size"))
    def found(original: Any, degrees: Any, world_size: int) -> Any:
        try:
            return original(degrees, world_size)
        except ValueError:
            patch.reached()
            return {name: max(1, degree) for name, degree in degrees.items()}


def _model(id: str, symptom: str, argument: str) -> None:
    """Declares that a size of the model is not looked at."""

    @_config(id, symptom)
    def install(patch: Patch) -> None:
        @patch.around(f"{_TRAINER}:check_parallel_degrees", parameters=("config", "world_size"))
        def check(original: Any, config: Any, world_size: int, **model: Any) -> Any:
            if model.pop(argument, None) is not None:
                patch.reached()
            return original(config, world_size, **model)


_model(
    "key-value-heads-not-looked-at",
    "With grouped queries, tensor parallel ranks fail in the first forward.",
    "kv_heads",
)
_model("layers-not-looked-at", "A pipeline has stages without layers.", "layers")

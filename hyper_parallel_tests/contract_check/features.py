"""The rule for features.toml: every line of the feature list has contracts that exist, or a reason why not."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping
from typing import Any

from hyper_parallel_tests.contract_check.tree import Tree

__all__ = ["every_feature_is_mapped"]

FILE = "features.toml"
_KEYS = {"area", "line", "contracts", "uncovered"}


def every_feature_is_mapped(tree: Tree) -> Iterator[str]:
    """Each feature names contracts of a contracts.toml, or says why it is uncovered, and stands there once."""
    path = tree.root / FILE
    if not path.is_file():
        yield f"{FILE}: it is missing: list the features with their contracts"
        return
    try:
        features = tomllib.loads(path.read_text()).get("feature", [])
    except tomllib.TOMLDecodeError as error:
        yield f"{FILE}: it cannot be read: {error}"
        return
    if not features:
        yield f"{FILE}: it has no [[feature]]: list the features with their contracts"
    seen: set[tuple[str, str]] = set()
    for number, feature in enumerate(features, start=1):
        where = f"{FILE}: {feature.get('line') or f'feature {number}'}"
        for problem in _problems(tree, feature):
            yield f"{where}: {problem}"
        name = (str(feature.get("area")), str(feature.get("line")))
        if name in seen:
            yield f"{where}: it stands twice in {name[0]}: join the entries"
        seen.add(name)


def _problems(tree: Tree, feature: Mapping[str, Any]) -> Iterator[str]:
    """What is wrong with one entry."""
    for key in ("area", "line"):
        if not isinstance(feature.get(key), str) or not feature[key].strip():
            yield f"it has no {key}: add it"
    for key in sorted(set(feature) - _KEYS):
        yield f"{key} is no key of a feature: use {', '.join(sorted(_KEYS))}"
    contracts, reason = feature.get("contracts"), feature.get("uncovered")
    if contracts and reason:
        yield "it has both contracts and a reason why it is uncovered: leave one out"
    if not contracts and not (isinstance(reason, str) and reason.strip()):
        yield "it has neither contracts nor a reason why it is uncovered: add one of them"
    if contracts is not None and not isinstance(contracts, list):
        yield 'contracts must be a list of ids, such as ["COL-1-03"]'
        return
    for one in contracts or []:
        if one not in tree.contracts:
            yield f"{one} is in no contracts.toml: correct the id, or mark the line as uncovered"
        if contracts.count(one) > 1:
            yield f"{one} is named {contracts.count(one)} times: once is enough"

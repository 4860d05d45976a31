"""The rules of operators, changed without the order of shards that PyTorch 2.13 keeps beside the placements."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from copy import copy
from dataclasses import replace
from typing import Any

from hyper_parallel_tests.faults import Patch
from hyper_parallel_tests.faults.sharding_rules import change_rule as change_rule_as_it_is


def change_rule(patch: Patch, ops: Iterable[str], change: Callable[[Any, Any], Any]) -> None:
    """`sharding_rules.change_rule` for a `change` that gives results other placements.

    The order was derived from the old placements; a description that carries it along is refused by PyTorch itself, and
    the defect would never take effect. Without it, the order is derived anew.
    """

    def change_without_order(schema: Any, sharding: Any) -> Any:
        free = replace(sharding, output_spec=_without_order(sharding.output_spec))
        changed = change(schema, free)
        return sharding if changed is free or changed == sharding else changed

    change_rule_as_it_is(patch, ops, change_without_order)


def _without_order(spec: Any) -> Any:
    if isinstance(spec, (tuple, list)):
        return type(spec)(_without_order(one) for one in spec)
    if spec is None:
        return None
    free = copy(spec)
    free.shard_order = None
    return free

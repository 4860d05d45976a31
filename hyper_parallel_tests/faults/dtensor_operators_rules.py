"""Change what DTensor derives for an operator: for the catalogues of its operators, declares no fault itself."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from copy import copy
from dataclasses import replace
from typing import Any

from torch.distributed.tensor import Partial, Replicate
from torch.distributed.tensor.debug import _clear_sharding_prop_cache

from hyper_parallel_tests.faults.patch import Patch

__all__ = ["change_rule", "computed_locally", "reduced_by", "taken_for_reduced"]

_PROPAGATE = "torch.distributed.tensor._dispatch:OpDispatcher._propagate_op_sharding_dispatch_slow_path"


def change_rule(patch: Patch, ops: Iterable[str], change: Callable[[Any, Any], Any]) -> None:
    """Have `change(schema, sharding)` decide what becomes of PyTorch's rule for `ops`.

    Args:
        ops: names of overloads, e.g. `aten.sum.default`.
        change: gets the operator's arguments and the rule's OutputSharding. Returns another one, which is the defect,
            or the same one where there is nothing to spoil. Its specs come without PyTorch's order of shards, which was
            derived from the old placements: a spec that carries it along is refused by PyTorch itself, and the defect
            would never take effect. Without it, the order is derived anew.
    """

    @patch.around(_PROPAGATE, parameters=("self", "op_call", "args", "kwargs", "op_info", "try_cache"))
    def propagate(original: Any, self: Any, op_call: Any, args: Any, kwargs: Any, op_info: Any, try_cache: bool) -> Any:
        sharding = original(self, op_call, args, kwargs, op_info, try_cache)
        if str(op_call) not in chosen:
            return sharding
        free = replace(sharding, output_spec=_without_order(sharding.output_spec))
        changed = change(op_info.schema, free)
        if changed is free or changed == sharding:
            return sharding
        patch.reached()
        return changed

    chosen = set(ops)
    # What is derived is kept in C++ by the arguments: what was right before and what is wrong now must both go.
    _clear_sharding_prop_cache()
    patch.at_the_end(_clear_sharding_prop_cache)


def _without_order(spec: Any) -> Any:
    if isinstance(spec, (tuple, list)):
        return type(spec)(_without_order(one) for one in spec)
    if spec is None:
        return None
    free = copy(spec)
    free.shard_order = None
    return free


def _placed(spec: Any, placements: Callable[[Any], Any]) -> Any:
    """A result's description, or several, with `placements(placement)` for each of its placements."""
    if isinstance(spec, (tuple, list)):
        return type(spec)(_placed(one, placements) for one in spec)
    return spec and replace(spec, placements=tuple(placements(one) for one in spec.placements))


def computed_locally(schema: Any, sharding: Any) -> Any:
    """Each rank computes with what it has of the first operand, and takes this for its part of the result."""
    first = schema.args_spec[0]
    if not sharding.needs_redistribute or all(isinstance(one, Replicate) for one in first.placements):
        return sharding
    specs = sharding.output_spec if isinstance(sharding.output_spec, tuple) else (sharding.output_spec,)
    kept = tuple(replace(one, placements=first.placements) for one in specs)
    return replace(
        sharding,
        output_spec=kept if isinstance(sharding.output_spec, tuple) else kept[0],
        redistribute_schema=None,
        needs_redistribute=False,
    )


def taken_for_reduced(_schema: Any, sharding: Any) -> Any:
    """Parts that are to be reduced pass for the whole."""
    spec = _placed(sharding.output_spec, lambda one: Replicate() if isinstance(one, Partial) else one)
    return sharding if spec == sharding.output_spec else replace(sharding, output_spec=spec)


def reduced_by(reduction: str) -> Callable[[Any, Any], Any]:
    """Parts are reduced by `reduction` instead of their own."""

    def change(_schema: Any, sharding: Any) -> Any:
        spec = _placed(sharding.output_spec, lambda one: Partial(reduction) if isinstance(one, Partial) else one)
        return sharding if spec == sharding.output_spec else replace(sharding, output_spec=spec)

    return change

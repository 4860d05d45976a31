"""The library's table of distributed operators: what it has, and rules for further ones."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

from hyper_parallel_tests.engines.hyper_parallel.layout import layout_from_placements
from hyper_parallel_tests.engines.hyper_parallel.library import find, platform, refuse

_DistributedOp = find("hyper_parallel.core.shard.ops.parallel_ops:DistributedOp")
_dispatcher = find("hyper_parallel.core.shard._op_dispatch:_OP_DISPATCHER")
_caches = find("hyper_parallel.core.shard._op_dispatch:LayoutCacheManager")
_table = find("hyper_parallel.core.shard.ops.parallel_ops_register:_DISTRIBUTED_OPS")


def apply_operator(operator: Callable[..., Any], *inputs: Any) -> Any:
    """See the port. The library's table is its list of operators; of any other it says that it has no rule."""
    try:
        return operator(*inputs)
    except RuntimeError as error:
        if "layout infer func" not in str(error):
            raise
        refuse("apply_operator", str(error))


@contextmanager
def register_sharding(op: Any, rule: Callable[..., Sequence[tuple[list[Any], list[Any]]]]) -> Iterator[None]:
    """See the port. What a user's YAML file and class do, without the files.

    The library asks for the layouts of the results only and moves no argument, so the rule must have a row for the
    placements that are there.
    """
    if None in (_DistributedOp, _dispatcher, _caches, _table) or platform() is None:
        refuse("register_sharding", "this version of the library has no table of operators")

    class Registered(_DistributedOp):
        def infer_layout(self, layouts: Sequence[Any], extra_args: Sequence[Any]) -> Any:
            return _infer(rule, self.op_name, layouts, extra_args)

    tables = (_table, _dispatcher.layout_infer_ops)
    names = _names(op)
    before = [(table, name, table.get(name)) for table in tables for name in names]
    for name in names:
        Registered(name)
        _dispatcher.layout_infer_ops[name] = {}
    _forget(names)
    try:
        yield
    finally:
        for table, name, entry in before:
            table.pop(name)
            if entry is not None:
                table[name] = entry
        _forget(names)


def _names(op: Any) -> list[str]:
    """Under which the library may meet an overload: called itself, and by the function of its name."""
    name = platform().get_op_name(op)
    return sorted({name, name.partition(".")[0]})


def _forget(names: Sequence[str]) -> None:
    """The library keeps what it inferred, for a rule that never changes."""
    for name in names:
        _caches.get_instance().get_layout_cache().pop(name, None)


def _infer(rule: Any, name: str, layouts: Sequence[Any], extra_args: Sequence[Any]) -> Any:
    """Layout of the result: along each mesh dimension that of the row which has the arguments' placements."""
    others = iter(extra_args)
    args = [next(others) if one is None else SimpleNamespace(ndim=len(one.tensor_map)) for one in layouts]
    tensors = [one for one in layouts if one is not None]
    results = []
    for axis in range(len(tensors[0].mesh_shape)):
        here = [one.placements[axis] for one in tensors]
        rows = [outputs for outputs, inputs in rule(*args) if [one for one in inputs if one is not None] == here]
        if not rows:
            raise ValueError(f"operator {name}: its rule has no row for {here} along mesh dimension {axis}")
        results.append(rows[0][0])
    return layout_from_placements(tensors[0].mesh, results, args[0].ndim)

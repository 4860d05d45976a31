"""How operations reach DTensor: rules for further operators, and a way past it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from torch._ops import OpOverload
from torch.distributed.tensor import DTensor
from torch.distributed.tensor import experimental as dtensor_experimental
from torch.distributed.tensor.debug import _clear_sharding_prop_cache
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map_only


@contextmanager
def register_sharding(op: OpOverload, rule: Callable[..., Sequence[tuple[list[Any], list[Any]]]]) -> Iterator[None]:
    """See the port. PyTorch only adds rules, so what was there before is kept here and put back."""
    propagator = DTensor._op_dispatcher.sharding_propagator
    tables = (propagator.op_strategy_funcs, propagator.op_to_schema_info)
    before = [table.get(op) for table in tables]
    dtensor_experimental.register_sharding(op)(rule)
    _clear_sharding_prop_cache()
    try:
        yield
    finally:
        for table, entry in zip(tables, before, strict=True):
            if entry is None:
                table.pop(op, None)
            else:
                table[op] = entry
        _clear_sharding_prop_cache()


class SkipDTensorDispatch(TorchDispatchMode):
    """See the port. The mode comes before DTensor, which therefore never sees the operation."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        args, kwargs = tree_map_only(DTensor, lambda tensor: tensor._local_tensor, (args, kwargs or {}))
        return func(*args, **kwargs)

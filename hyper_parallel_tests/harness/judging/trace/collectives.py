"""Records the collectives that a block of code starts, in order, whatever API they came through."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch._subclasses.fake_tensor import FakeTensor
from torch.distributed import distributed_c10d
from torch.utils._python_dispatch import TorchDispatchMode

__all__ = ["Collective", "Collectives", "collectives"]

_NAMESPACES = {"c10d", "_c10d_functional", "_c10d_functional_autograd", "_dtensor"}
_NAMES = {
    "allreduce": "all_reduce",
    "allreduce_coalesced": "all_reduce",
    "all_reduce_coalesced": "all_reduce",
    "allgather": "all_gather",
    "allgather_base": "all_gather",
    "allgather_coalesced": "all_gather",
    "allgather_into_tensor_coalesced": "all_gather",
    "all_gather_into_tensor": "all_gather",
    "all_gather_into_tensor_out": "all_gather",
    "all_gather_into_tensor_coalesced": "all_gather",
    "reduce_scatter_base": "reduce_scatter",
    "reduce_scatter_tensor": "reduce_scatter",
    "reduce_scatter_tensor_out": "reduce_scatter",
    "reduce_scatter_tensor_coalesced": "reduce_scatter",
    "alltoall": "all_to_all",
    "alltoall_base": "all_to_all",
    "all_to_all_single": "all_to_all",
    "shard_dim_alltoall": "all_to_all",
    "isend": "send",
    "irecv": "recv",
    "recv_any_source": "recv",
}
_PEERS = {
    "send": "to",
    "recv": "from",
    "broadcast": "from",
    "scatter": "from",
    "gather": "to",
    "reduce": "to",
}


@dataclass(frozen=True)
class Collective:
    """One collective, as this rank started it. `str()` gives e.g. `all_gather float32 1024B over (0, 1)`.

    Attributes:
        op: all_reduce, all_gather, reduce_scatter, all_to_all, broadcast, reduce, gather, scatter, send,
            recv, barrier, monitored_barrier.
        ranks: global ranks of the group, in group order.
        dtype: of what this rank puts in, e.g. float32; empty for a barrier.
        bytes: size of what this rank puts in: its shard for all_gather, all of it for reduce_scatter; for
            recv and a receiver of scatter the size of what comes out.
        shapes: of the same tensors.
        reduce: sum, avg, max, ...; empty where nothing is reduced.
        peer: global rank of the root or of the other side, None where there is none.
    """

    op: str
    ranks: tuple[int, ...]
    dtype: str = ""
    bytes: int = 0
    shapes: tuple[tuple[int, ...], ...] = ()
    reduce: str = ""
    peer: int | None = None

    def __str__(self) -> str:
        words = [self.op, self.reduce, self.dtype, f"{self.bytes}B" if self.shapes else ""]
        if self.peer is not None:
            words.append(f"{_PEERS.get(self.op, 'with')} {self.peer}")
        return " ".join(word for word in words if word) + f" over {self.ranks}"


class Collectives(TorchDispatchMode):
    """The recording; iterate over it for `Collective`s, or ask for lines or names."""

    def __init__(self) -> None:
        super().__init__()
        self._recorded: list[Collective] = []

    def __iter__(self) -> Iterator[Collective]:
        return iter(self._recorded)

    def __len__(self) -> int:
        return len(self._recorded)

    def __getitem__(self, number: int) -> Collective:
        return self._recorded[number]

    def __repr__(self) -> str:
        return "\n".join(["collectives:", *self.lines()])

    def lines(self) -> list[str]:
        """One readable line a collective, in the order of starting."""
        return [str(one) for one in self._recorded]

    def ops(self, over: tuple[int, ...] | None = None) -> list[str]:
        """Names in the order of starting; with `over` only those of the group of these global ranks."""
        return [one.op for one in self._recorded if over is None or one.ranks == over]

    def of(self, op: str) -> list[Collective]:
        """Those called `op`, in order."""
        return [one for one in self._recorded if one.op == op]

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if any(issubclass(kind, FakeTensor) for kind in types):
            return func(*args, **kwargs)
        # Other subclasses unfold first: what they send comes back here as an operation on plain tensors.
        if any(unfolds(kind) for kind in types):
            return NotImplemented
        found = _read(func, args, kwargs)
        if found is not None:
            self._recorded.append(found)
        return func(*args, **kwargs)


def collectives() -> Collectives:
    """Record every collective and point-to-point transfer that this thread and its backward passes start.

    c10d and functional collectives are seen, those of DTensor, FSDP and DDP among them. What other threads
    start by themselves is not, for example an asynchronous checkpoint.
    """
    return Collectives()


def unfolds(kind: type) -> bool:
    """Whether operators on this kind of tensor turn into operators on plain ones, as a distributed tensor's do."""
    dispatch = kind.__torch_dispatch__
    return dispatch not in (torch.Tensor.__torch_dispatch__, torch._C._disabled_torch_dispatch_impl)


def _read(func: Any, args: Any, kwargs: Any) -> Collective | None:
    """The collective that calling `func` starts, None where it starts none."""
    if func.namespace not in _NAMESPACES:
        return None
    # The operators' schemas name their parts alike, so no list of signatures is needed.
    schema = func._schema
    given = {argument.name: value for argument, value in zip(schema.arguments, args, strict=False)} | kwargs
    group = given.get("process_group", given.get("group_name"))
    if group is None:
        return None
    ranks = _ranks(group)
    name = schema.name.split("::")[1].strip("_")
    op = _NAMES.get(name, name)
    ours = _flat([value for key, value in given.items() if key.startswith(("input", "tensor"))])
    ours = ours or _flat([value for key, value in given.items() if key.startswith("output")])
    if op in {"barrier", "monitored_barrier"}:
        return Collective(op, ranks)
    peer = next((given[key] for key in ("src", "dst", "root_rank") if key in given), None)
    return Collective(
        op,
        ranks,
        dtype="+".join(sorted({str(tensor.dtype).removeprefix("torch.") for tensor in ours})),
        bytes=sum(tensor.numel() * tensor.element_size() for tensor in ours),
        shapes=tuple(tuple(tensor.shape) for tensor in ours),
        reduce=_reduce_name(given.get("reduce_op")),
        peer=None if peer is None else ranks[peer],
    )


def _ranks(group: Any) -> tuple[int, ...]:
    if isinstance(group, str):
        group = distributed_c10d._resolve_process_group(group)
    elif not isinstance(group, dist.ProcessGroup):
        group = dist.ProcessGroup.unbox(group)
    return tuple(dist.get_process_group_ranks(group))


def _reduce_name(reduce: Any) -> str:
    if reduce is None or isinstance(reduce, str):
        return reduce or ""
    # The operator gets a boxed ReduceOp, which torch does not unbox for Python; its number it tells.
    return dist.ReduceOp.RedOpType(reduce._get_method("op")()).name.lower()


def _flat(value: Any) -> list[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        return [value]
    return [tensor for part in value for tensor in _flat(part)] if isinstance(value, (list, tuple)) else []

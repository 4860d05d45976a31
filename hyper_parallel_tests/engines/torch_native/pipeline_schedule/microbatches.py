"""Dividing a batch into micro-batches and merging them, by PyTorch's schedules."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor
from torch.distributed.pipelining.microbatch import TensorChunkSpec, _Replicate, _split_tensor, merge_chunks
from torch.distributed.pipelining.schedules import _TARGET_CHUNK_SPEC, ScheduleGPipe
from torch.utils._pytree import tree_map


class BatchDimSpec:
    """See the port. HyperParallel's class; PyTorch's for the same end knows no -1."""

    def __init__(self, batch_dim: int) -> None:
        if not isinstance(batch_dim, int):
            raise TypeError(f"the dimension of the batch is a number, not {batch_dim!r} of {type(batch_dim).__name__}")
        self.batch_dim = batch_dim

    @staticmethod
    def from_tuple(batch_dims: tuple[int, ...]) -> tuple[BatchDimSpec, ...]:
        """See the port."""
        if not isinstance(batch_dims, tuple):
            raise TypeError(f"expected a tuple of dimensions, not {batch_dims!r}")
        return tuple(map(BatchDimSpec, batch_dims))

    @staticmethod
    def from_dict(batch_dims: dict[str, int]) -> dict[str, BatchDimSpec]:
        """See the port."""
        if not isinstance(batch_dims, dict):
            raise TypeError(f"expected a dict of dimensions, not {batch_dims!r}")
        return {name: BatchDimSpec(dim) for name, dim in batch_dims.items()}


def split_microbatches(
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    n_microbatches: int,
    args_batch_dim: Sequence[BatchDimSpec | None] | None = None,
    kwargs_batch_dim: Mapping[str, BatchDimSpec | None] | None = None,
) -> tuple[list[tuple[Any, ...]], list[dict[str, Any]]]:
    """See the port."""
    arg_specs, kwarg_specs = chunk_specs(args, kwargs, args_batch_dim, kwargs_batch_dim)
    schedule = ScheduleGPipe(
        SimpleNamespace(num_stages=1), n_microbatches, args_chunk_spec=arg_specs, kwargs_chunk_spec=kwarg_specs
    )
    # The split makes fewer micro-batches of too few rows; before its step the schedule counts them.
    return schedule._check_inputs(*schedule._split_inputs(args, kwargs))


def split_target(target: Tensor, n_microbatches: int) -> list[Tensor]:
    """See the port."""
    try:
        return list(_split_tensor(target, _TARGET_CHUNK_SPEC, n_microbatches))
    except AssertionError as error:
        raise ValueError(f"a target of {len(target)} rows for {n_microbatches} micro-batches: {error}") from error


def merge_microbatches(outputs: Sequence[Any], batch_dim: Any = None) -> Any:
    """See the port."""
    spec = None if batch_dim is None else tree_map(lambda dim: TensorChunkSpec(dim.batch_dim), batch_dim)
    return merge_chunks(list(outputs), spec)


def chunk_specs(
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    args_batch_dim: Sequence[BatchDimSpec | None] | None,
    kwargs_batch_dim: Mapping[str, BatchDimSpec | None] | None,
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """How PyTorch is told to divide arguments: one for each of them, since it goes by their places and not by name."""
    dims, named_dims = args_batch_dim or [None] * len(args), kwargs_batch_dim or {}
    return (
        tuple(_chunk_spec(arg, dim) for arg, dim in zip(args, dims, strict=True)),
        {name: _chunk_spec(arg, named_dims.get(name)) for name, arg in kwargs.items()},
    )


def _chunk_spec(argument: Any, batch_dim: BatchDimSpec | None) -> Any:
    """How PyTorch is told to divide an argument, in the argument's structure."""
    dim = 0 if batch_dim is None else batch_dim.batch_dim

    def of_leaf(leaf: Any) -> Any:
        return TensorChunkSpec(dim) if isinstance(leaf, torch.Tensor) and dim != -1 else _Replicate()

    return tree_map(of_leaf, argument)

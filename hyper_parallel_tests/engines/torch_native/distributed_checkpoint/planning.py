"""Plans: what each rank writes and reads. PyTorch's planners under the port's names, with the checks that they lack."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

from torch import Tensor
from torch.distributed.checkpoint import (
    DefaultLoadPlanner,
    DefaultSavePlanner,
    LoadPlan,
    Metadata,
    SavePlan,
    SavePlanner,
    TensorStorageMetadata,
)

from hyper_parallel_tests.engines.port.distributed_checkpoint import PlannedRead, PlannedWrite

_CACHES = (
    "_cached_save_plan",
    "_cached_final_save_plan",
    "_cached_all_plans",
    "_cached_global_plan",
    "_cached_metadata",
)


class StandardSavePlanner(DefaultSavePlanner):
    """See the port."""

    def __init__(self, *, enable_plan_caching: bool = False) -> None:
        super().__init__(enable_plan_caching=enable_plan_caching)

    def configure_planner(self, state_dict: dict[str, Any], *, is_coordinator: bool, rank: int) -> None:
        """See the port. PyTorch takes the rank from each tensor's mesh."""
        self.set_up_planner(state_dict, is_coordinator=is_coordinator)

    build_local_plan = DefaultSavePlanner.create_local_plan
    build_global_plan = DefaultSavePlanner.create_global_plan
    finalize_plan = DefaultSavePlanner.finish_plan


class StandardLoadPlanner(DefaultLoadPlanner):
    """See the port."""

    def __init__(self, *, allow_partial_load: bool = False) -> None:
        super().__init__(allow_partial_load=allow_partial_load)

    def configure_planner(
        self, state_dict: dict[str, Any], metadata: Metadata, *, is_coordinator: bool, rank: int
    ) -> None:
        """See the port. PyTorch takes the rank from each tensor's mesh."""
        self.set_up_planner(state_dict, metadata, is_coordinator)

    def create_local_plan(self) -> LoadPlan:
        """PyTorch's plan, once each key is known to be of one kind and dtype on both sides."""
        plan = super().create_local_plan()
        for key, value in self.state_dict.items():
            if (saved := self.metadata.state_dict_metadata.get(key)) is not None:
                _check_kind(key, saved, value)
        return plan

    def build_local_plan(self) -> LoadPlan:
        """See the port."""
        return self.create_local_plan()

    build_global_plan = DefaultLoadPlanner.create_global_plan
    finalize_plan = DefaultLoadPlanner.finish_plan


def _check_kind(key: str, saved: Any, value: Any) -> None:
    """PyTorch would convert another dtype, and put an object in the place of a tensor."""
    if not isinstance(saved, TensorStorageMetadata):
        if isinstance(value, Tensor):
            raise ValueError(f"{key} is asked for as a tensor, but the checkpoint has an object: ask for an object")
    elif value.dtype != saved.properties.dtype:
        raise ValueError(
            f"{key} is {saved.properties.dtype} in the checkpoint, but asked for as {value.dtype}: load the former and "
            "convert it"
        )


def planned_writes(plan: SavePlan) -> list[PlannedWrite]:
    """See the port."""
    return [
        PlannedWrite(item.index.fqn, None, None)
        if item.tensor_data is None
        else PlannedWrite(item.index.fqn, tuple(item.tensor_data.chunk.offsets), tuple(item.tensor_data.chunk.sizes))
        for item in plan.items
    ]


def planned_reads(plan: LoadPlan) -> list[PlannedRead]:
    """See the port."""
    return [
        PlannedRead(
            item.dest_index.fqn,
            None if item.storage_index.offset is None else tuple(item.storage_index.offset),
            tuple(item.storage_offsets),
            tuple(item.dest_offsets),
            tuple(item.lengths),
        )
        for item in plan.items
    ]


@contextmanager
def save_plan_cache_cleared() -> Iterator[None]:
    """See the port. PyTorch keeps the plans in dicts of the class."""
    with mock.patch.multiple(SavePlanner, **{cache: {} for cache in _CACHES}):
        yield

"""Faults of distributed checkpoints on torch_native: who writes and who reads which part."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import torch

from hyper_parallel_tests.faults import Patch, fault

_PLANNER = "torch.distributed.checkpoint.default_planner"
_HELPERS = "torch.distributed.checkpoint.planner_helpers"


def _unchecked(patch: Patch) -> None:
    """PyTorch looks at the whole plan before it writes, and would refuse most of what is wrong with it."""

    @patch.around(f"{_PLANNER}:_validate_global_plan", parameters=("global_plan", "metadata"))
    def validate(_: Any, global_plan: Any, metadata: Any) -> list[str]:
        return []


@fault(
    id="checkpoint-replicas-written-by-all",
    symptom="Checkpoints are as many times too large as there are replicas.",
    capability="distributed_checkpoint",
    layer="l0",
    must_fail=["CK-0-01"],
)
def replicas_written_by_all(patch: Patch) -> None:
    _unchecked(patch)

    @patch.around(f"{_PLANNER}:dedup_save_plans", parameters=("all_plans", "save_to_lowest_rank"))
    def dedup(_: Any, all_plans: list[Any], save_to_lowest_rank: bool = False) -> list[Any]:
        patch.reached()
        return all_plans


@fault(
    id="checkpoint-replicas-written-by-rank-0",
    symptom="Saves take as long as rank 0 needs for everything that is replicated, while the others wait.",
    capability="distributed_checkpoint",
    layer="l0",
    must_fail=["CK-0-01"],
)
def replicas_written_by_rank_0(patch: Patch) -> None:
    @patch.around(f"{_PLANNER}:dedup_save_plans", parameters=("all_plans", "save_to_lowest_rank"))
    def dedup(original: Any, all_plans: list[Any], save_to_lowest_rank: bool = False) -> list[Any]:
        patch.reached()
        return original(all_plans, True)


@fault(
    id="checkpoint-part-of-last-rank-not-written",
    symptom="The last rows of every divided parameter are what they were before the load.",
    capability="distributed_checkpoint",
    layer="l0",
    must_fail=["CK-0-01"],
)
def part_of_last_rank_not_written(patch: Patch) -> None:
    _unchecked(patch)

    @patch.around(f"{_PLANNER}:dedup_save_plans", parameters=("all_plans", "save_to_lowest_rank"))
    def dedup(original: Any, *args: Any, **options: Any) -> list[Any]:
        *plans, last = original(*args, **options)
        kept = [item for item in last.items if item.tensor_data is None or not any(item.index.offset)]
        if len(kept) < len(last.items):
            patch.reached()
        return [*plans, dataclasses.replace(last, items=kept)]


@fault(
    id="checkpoint-missing-part-unnoticed",
    symptom="A rank that left a parameter out of its state dict makes a checkpoint with a hole.",
    capability="distributed_checkpoint",
    layer="l0",
    must_fail=["CK-0-01"],
)
def missing_part_unnoticed(patch: Patch) -> None:
    @patch.around(f"{_PLANNER}:_validate_global_plan", parameters=("global_plan", "metadata"))
    def validate(original: Any, global_plan: Any, metadata: Any) -> list[str]:
        errors = original(global_plan, metadata)
        if errors:
            patch.reached()
        return []


@fault(
    id="checkpoint-parts-counted-alike",
    symptom="Where a dimension does not divide evenly, the last rows land in the wrong place.",
    capability="distributed_checkpoint",
    layer="l0",
    must_fail=["CK-0-01"],
)
def parts_counted_alike(patch: Patch) -> None:
    _unchecked(patch)

    @patch.around(f"{_HELPERS}:compute_local_shape_and_global_offset")
    def where(original: Any, global_shape: Any, mesh: Any, placements: Any, *args: Any) -> Any:
        sizes, offsets = original(global_shape, mesh, placements, *args)
        uneven = [size and offset % size for size, offset in zip(sizes, offsets, strict=True)]
        if any(uneven):
            patch.reached()
        return sizes, tuple(offset - odd for offset, odd in zip(offsets, uneven, strict=True))


def _reads(patch: Patch, change: Callable[[list[Any]], list[Any]]) -> None:
    """What is read of one key, after ``change``."""

    @patch.around(f"{_HELPERS}:create_read_items_for_chunk_list", parameters=("fqn", "checkpoint_md", "local_chunks"))
    def items(original: Any, fqn: str, checkpoint_md: Any, local_chunks: Any) -> list[Any]:
        before = original(fqn, checkpoint_md, local_chunks)
        after = change(before)
        if after != before:
            patch.reached()
        return after


@fault(
    id="checkpoint-one-saved-part-read",
    symptom="On fewer cards than at the save, a rank gets the first saved part of its own and keeps the rest.",
    capability="distributed_checkpoint",
    layer="l0",
    must_fail=["CK-0-01"],
)
def one_saved_part_read(patch: Patch) -> None:
    _reads(patch, lambda items: items[:1])


@fault(
    id="checkpoint-saved-part-read-from-its-beginning",
    symptom="On more cards than at the save, several ranks get the same rows.",
    capability="distributed_checkpoint",
    layer="l0",
    must_fail=["CK-0-01"],
)
def saved_part_read_from_its_beginning(patch: Patch) -> None:
    def change(items: list[Any]) -> list[Any]:
        return [dataclasses.replace(item, storage_offsets=_zeros(item.storage_offsets)) for item in items]

    _reads(patch, change)


@fault(
    id="checkpoint-read-to-the-beginning",
    symptom="On fewer cards than at the save, the saved parts overwrite each other in the first rows.",
    capability="distributed_checkpoint",
    layer="l0",
    must_fail=["CK-0-01"],
)
def read_to_the_beginning(patch: Patch) -> None:
    def change(items: list[Any]) -> list[Any]:
        return [dataclasses.replace(item, dest_offsets=_zeros(item.dest_offsets)) for item in items]

    _reads(patch, change)


def _zeros(offsets: Any) -> torch.Size:
    return torch.Size([0] * len(offsets))

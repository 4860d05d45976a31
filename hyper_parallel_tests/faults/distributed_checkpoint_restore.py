"""Faults of distributed checkpoints on torch_native: what another layout than the saved one gets."""

from __future__ import annotations

import dataclasses
from typing import Any

import torch.distributed as dist
from torch.distributed.checkpoint.metadata import ChunkStorageMetadata
from torch.distributed.checkpoint.planner import LoadPlan
from torch.distributed.tensor import DTensor

from hyper_parallel_tests.faults import Patch, fault

_PLANS = "torch.distributed.checkpoint.default_planner:create_default_local_load_plan"
_PLANS_TAKE = ("state_dict", "metadata", "strict")
_READS = "torch.distributed.checkpoint.planner_helpers:create_read_items_for_chunk_list"
_READS_TAKE = ("fqn", "checkpoint_md", "local_chunks")


@fault(
    id="restore-optimizer-state-dropped-in-a-reshard",
    symptom="Behind a change of the number of ranks the loss jumps, and comes back after some hundred steps.",
    capability="distributed_checkpoint",
    layer="l2",
    must_fail=["CK-2-02"],
)
def optimizer_state_dropped_in_a_reshard(patch: Patch) -> None:
    @patch.around(_PLANS, parameters=_PLANS_TAKE)
    def plan(original: Any, state_dict: Any, metadata: Any, strict: bool = True) -> LoadPlan:
        def dropped(item: Any) -> bool:
            name = item.dest_index.fqn
            if not name.startswith("optimizer.") or not isinstance(state_dict[name], DTensor):
                return False
            return state_dict[name].to_local().shape != metadata.state_dict_metadata[name].chunks[0].sizes

        items = original(state_dict, metadata, strict).items
        left = [item for item in items if not dropped(item)]
        if len(left) < len(items):
            patch.reached()
        return LoadPlan(left)


@fault(
    id="restore-offsets-of-uneven-parts-as-if-even",
    symptom="The last rows of a vocabulary that no number of ranks divides are those of other words.",
    capability="distributed_checkpoint",
    layer="l2",
    must_fail=["CK-2-02"],
)
def offsets_of_uneven_parts_as_if_even(patch: Patch) -> None:
    def even(chunk: Any) -> Any:
        sizes = [max(size, 1) for size in chunk.sizes]
        offsets = type(chunk.offsets)(at // size * size for at, size in zip(chunk.offsets, sizes, strict=True))
        if offsets != chunk.offsets:
            patch.reached()
        return ChunkStorageMetadata(offsets=offsets, sizes=chunk.sizes)

    @patch.around(_READS, parameters=_READS_TAKE)
    def reads(original: Any, fqn: str, checkpoint_md: Any, local_chunks: Any) -> Any:
        return original(fqn, checkpoint_md, [even(chunk) for chunk in local_chunks])


@fault(
    id="restore-step-of-another-parameter",
    symptom="Adam corrects the bias of young moments by the count of a parameter of another stage.",
    capability="distributed_checkpoint",
    layer="l2",
    must_fail=["CK-2-02"],
)
def step_of_another_parameter(patch: Patch) -> None:
    @patch.around(_PLANS, parameters=_PLANS_TAKE)
    def plan(original: Any, state_dict: Any, metadata: Any, strict: bool = True) -> LoadPlan:
        items = original(state_dict, metadata, strict).items
        steps = [item.storage_index for item in items if item.dest_index.fqn.endswith(".step")]
        if len(steps) > 1:
            patch.reached()
        return LoadPlan(
            [
                dataclasses.replace(item, storage_index=steps[0]) if item.storage_index in steps else item
                for item in items
            ]
        )


@fault(
    id="restore-files-of-further-ranks-left",
    symptom="Loaded on fewer ranks than it was saved by, a model has random weights in its last layers.",
    capability="distributed_checkpoint",
    layer="l2",
    must_fail=["CK-2-02"],
)
def files_of_further_ranks_left(patch: Patch) -> None:
    @patch.around("torch.distributed.checkpoint:FileSystemReader.read_data", parameters=("self", "plan", "planner"))
    def read_data(original: Any, self: Any, plan: LoadPlan, planner: Any) -> Any:
        def rank(item: Any) -> int:
            return int(self.storage_data[item.storage_index].relative_path.split("_")[2])

        left = [item for item in plan.items if rank(item) < dist.get_world_size()]
        if len(left) < len(plan.items):
            patch.reached()
        return original(self, dataclasses.replace(plan, items=left), planner)


@fault(
    id="restore-first-part-alone",
    symptom="A sharded model loaded as a whole one has rank 0's rows, and zeros or noise below.",
    capability="distributed_checkpoint",
    layer="l2",
    must_fail=["CK-2-02"],
)
def first_part_alone(patch: Patch) -> None:
    @patch.around(_READS, parameters=_READS_TAKE)
    def reads(original: Any, fqn: str, checkpoint_md: Any, local_chunks: Any) -> Any:
        found = original(fqn, checkpoint_md, local_chunks)
        if len(found) > 1:
            patch.reached()
        return found[:1]


@fault(
    id="restore-parts-by-columns-laid-over-each-other",
    symptom="A model that tensor parallelism has divided by columns comes back with one rank's columns alone.",
    capability="distributed_checkpoint",
    layer="l2",
    must_fail=["CK-2-02"],
)
def parts_by_columns_laid_over_each_other(patch: Patch) -> None:
    @patch.around(_READS, parameters=_READS_TAKE)
    def reads(original: Any, fqn: str, checkpoint_md: Any, local_chunks: Any) -> Any:
        found = original(fqn, checkpoint_md, local_chunks)
        for item in found:
            if any(item.dest_offsets[1:]):
                patch.reached()
        return [
            dataclasses.replace(
                item, dest_offsets=type(item.dest_offsets)([*item.dest_offsets[:1], *[0] * len(item.dest_offsets[1:])])
            )
            for item in found
        ]

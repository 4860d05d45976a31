"""Faults of collectives on part of the world, and of those of objects."""

from __future__ import annotations

from typing import Any

import torch.distributed as dist

from hyper_parallel_tests.faults import Patch, fault

_OURS = "hyper_parallel_tests.engines.torch_native.collectives"


@fault(
    id="col-group-ignored",
    symptom="With tensor parallelism beside data parallelism gradients are summed over all ranks: they are too large.",
    capability="collectives",
    layer="l2",
    must_fail=["COL-2-02"],
    ranks="all",
)
def group_ignored(patch: Patch) -> None:
    @patch.around(f"{_OURS}:all_reduce", parameters=("tensor", "op", "group", "async_op"))
    def all_reduce(original: Any, tensor: Any, op: str = "sum", *, group: Any = None, **options: Any) -> Any:
        if group is not None:
            patch.reached()
        return original(tensor, op, **options)


@fault(
    id="col-source-counted-in-the-group",
    symptom="With two replicas, parameters of the second are those of another rank than its first.",
    capability="collectives",
    layer="l2",
    must_fail=["COL-2-02"],
)
def source_counted_in_the_group(patch: Patch) -> None:
    @patch.around(f"{_OURS}:broadcast", parameters=("tensor", "src", "group", "async_op"))
    def broadcast(original: Any, tensor: Any, src: int, *, group: Any = None, **options: Any) -> Any:
        ranks = dist.get_process_group_ranks(group)
        if ranks[src % len(ranks)] != src:
            patch.reached()
        return original(tensor, ranks[src % len(ranks)], group=group, **options)


@fault(
    id="col-own-object-not-copied",
    symptom="A state that is edited after it was gathered changes in the checkpoint too, on one rank only.",
    capability="collectives",
    layer="l2",
    must_fail=["COL-2-03"],
    ranks="all",
)
def own_object_not_copied(patch: Patch) -> None:
    @patch.around(f"{_OURS}:all_gather_object", parameters=("obj", "group"))
    def all_gather_object(original: Any, obj: Any, *, group: Any = None) -> list[Any]:
        found = original(obj, group=group)
        patch.reached()
        found[dist.get_rank(group)] = obj
        return found


@fault(
    id="col-objects-scattered-in-reverse",
    symptom="After a resume each rank reads the data that another one was at.",
    capability="collectives",
    layer="l2",
    must_fail=["COL-2-03"],
    ranks="all",
)
def objects_scattered_in_reverse(patch: Patch) -> None:
    @patch.around(f"{_OURS}:scatter_object", parameters=("objects", "src", "group"))
    def scatter_object(original: Any, objects: list[Any] | None, src: int, *, group: Any = None) -> Any:
        patch.reached()
        return original(objects and objects[::-1], src, group=group)

"""Faults of a run's generators on torch_native: which ranks draw the same numbers, and from where."""

from __future__ import annotations

from typing import Any

import torch.distributed as dist

from hyper_parallel_tests.faults import Patch, fault

_TRAINER = "hyper_parallel_tests.engines.torch_native.trainer"
_LOOP = f"{_TRAINER}.loop"


def _generators(id: str, symptom: str) -> Any:
    return fault(id=f"resume-{id}", symptom=symptom, capability="resume", layer="l2", must_fail=["RS-2-01"])


@_generators("one-seed-for-all-ranks", "All replicas have the same dropout masks.")
def one_seed_for_all_ranks(patch: Patch) -> None:
    @patch.around(f"{_LOOP}:parallel_seed", parameters=("seed", "device_mesh", "distinct_dims"))
    def seed(original: Any, seed: int, mesh: Any, dims: Any) -> int:
        if "pp" not in dims:
            return original(seed, mesh, dims)
        patch.reached()
        return seed


@_generators("ranks-of-a-layer-draw-apart", "Ranks that divide a layer drop other elements of what they all have.")
def ranks_of_a_layer_draw_apart(patch: Patch) -> None:
    @patch.around(f"{_LOOP}:parallel_seed", parameters=("seed", "device_mesh", "distinct_dims"))
    def seed(original: Any, seed: int, mesh: Any, dims: Any) -> int:
        if "tp" in mesh.mesh_dim_names and "pp" in dims:
            patch.reached()
        return original(seed, mesh, (*dims, "tp") if "pp" in dims else dims)


@_generators("as-many-ranks-are-the-same", "Behind a restart on another mesh of as many ranks replicas draw alike.")
def as_many_ranks_are_the_same(patch: Patch) -> None:
    @patch.around(f"{_TRAINER}.state:_ranks", parameters=("trainer",))
    def ranks(original: Any, trainer: Any) -> dict[str, Any]:
        found = original(trainer)
        if found["ranks.mesh"]:
            patch.reached()
        return found | {"ranks.mesh": ""}


@_generators("other-mesh-repeats-numbers", "A restart on other ranks repeats the numbers of the begin of the run.")
def other_mesh_repeats_numbers(patch: Patch) -> None:
    @patch.around(f"{_LOOP}:BaseTrainer.seed", parameters=("self",))
    def seed(original: Any, self: Any, *more: int) -> None:
        if more:
            patch.reached()
        original(self)


@_generators("all-ranks-draw-as-the-first", "Behind a restart all ranks have the dropout masks of the first one.")
def all_ranks_draw_as_the_first(patch: Patch) -> None:
    @patch.around(f"{_TRAINER}.state:set_random_state", parameters=("state", "tracker"))
    def put(original: Any, state: Any, tracker: Any) -> None:
        if dist.get_world_size() > 1:
            patch.reached()
        shared = [state["torch"].clone()]
        dist.broadcast(shared[0], 0)
        original({**state, "torch": shared[0]}, tracker)

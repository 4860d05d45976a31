"""Faults of distributed random numbers on torch_native."""

from __future__ import annotations

from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist

from hyper_parallel_tests.faults import Patch, fault

_OURS = "hyper_parallel_tests.engines.torch_native.rng"
_FACTORIES = "hyper_parallel_tests.engines.torch_native.dtensor.factories"
_OFFSETS = ("global_shape", "device_mesh", "placements")


@fault(
    id="rng-moves-on-by-the-mesh",
    symptom="Weights of neighbouring layers repeat each other: a tensor takes as many numbers as there are ranks.",
    capability="rng",
    layer="l0",
    must_fail=["RN-0-01"],
)
def moves_on_by_the_mesh(patch: Patch) -> None:
    @patch.around(f"{_OURS}:rng_offsets", parameters=_OFFSETS)
    def offsets(original: Any, global_shape: Any, device_mesh: Any, placements: Any) -> tuple[int, int]:
        patch.reached()
        return original(global_shape, device_mesh, placements)[0], (device_mesh.size() + 3) // 4 * 4


@fault(
    id="rng-replicas-begin-apart",
    symptom="Replicas of a parameter start with different values and never agree.",
    capability="rng",
    layer="l0",
    must_fail=["RN-0-01"],
)
def replicas_begin_apart(patch: Patch) -> None:
    @patch.around(f"{_OURS}:rng_offsets", parameters=_OFFSETS)
    def offsets(original: Any, global_shape: Any, device_mesh: Any, placements: Any) -> tuple[int, int]:
        start, end = original(global_shape, device_mesh, placements)
        if any(placement.is_replicate() for placement in placements):
            patch.reached()
            start += 4 * dist.get_rank()
        return start, end


@fault(
    id="rng-one-seed-for-all-stages",
    symptom="All pipeline stages start with the same weights.",
    capability="rng",
    layer="l0",
    must_fail=["RN-0-01"],
)
def one_seed_for_all_stages(patch: Patch) -> None:
    @patch.around(f"{_OURS}:parallel_seed", parameters=("seed", "device_mesh", "distinct_dims"))
    def own_seed(_: Any, seed: int, device_mesh: Any, distinct_dims: Any = ("pp",)) -> int:
        patch.reached()
        return seed


@fault(
    id="rng-region-lost-on-an-exception",
    symptom="After a step that was interrupted and repeated, ranks drop different elements of what they share.",
    capability="rng",
    layer="l1",
    must_fail=["RN-1-01"],
    ranks="all",
)
def region_lost_on_an_exception(patch: Patch) -> None:
    @contextmanager
    def kept() -> Any:
        outer = torch.get_rng_state()
        try:
            yield
        except Exception:
            patch.reached()
            raise
        torch.set_rng_state(outer)

    patch.replace(f"{_OURS}:_kept", lambda original: kept)


@fault(
    id="rng-region-starts-anew",
    symptom="Each layer drops the same elements in each step.",
    capability="rng",
    layer="l1",
    must_fail=["RN-1-01"],
    ranks="all",
)
def region_starts_anew(patch: Patch) -> None:
    @patch.around(f"{_OURS}:RNGStatesTracker.fork", parameters=("self", "name"))
    @contextmanager
    def fork(original: Any, self: Any, name: str) -> Any:
        before = self._states.get(name)
        with original(self, name):
            yield
        patch.reached()
        self._states[name] = before


@fault(
    id="rng-saved-state-is-the-first",
    symptom="After each resume the same elements are dropped as at the very start.",
    capability="rng",
    layer="l1",
    must_fail=["RN-1-01", "RN-2-01"],
    ranks="all",
)
def saved_state_is_the_first(patch: Patch) -> None:
    @patch.around(f"{_OURS}:RNGStatesTracker.get_states", parameters=("self",))
    def get_states(original: Any, self: Any) -> Any:
        states = original(self)
        if states["streams"]:
            patch.reached()
        with torch.random.fork_rng(devices=[]):
            for name, seed in zip(states["streams"], states["seeds"], strict=True):
                torch.manual_seed(seed)
                states["streams"][name] = [torch.get_rng_state()]
        return states


@fault(
    id="rng-each-rank-draws-its-own",
    symptom="Every rank draws the same small tensor for its part: the full weight repeats itself.",
    capability="rng",
    layer="l2",
    must_fail=["RN-2-01"],
)
def each_rank_draws_its_own(patch: Patch) -> None:
    @patch.around(f"{_FACTORIES}:_random", parameters=("draw", "sharded", "size", "device_mesh", "placements"))
    def random(original: Any, draw: Any, sharded: Any, size: Any, mesh: Any, placements: Any, **options: Any) -> Any:
        whole = original(draw, sharded, size, mesh, placements, **options)
        if any(placement.is_shard() for placement in placements):
            patch.reached()
            with torch.no_grad():
                whole.to_local().copy_(draw(whole.to_local().shape))
        return whole


@fault(
    id="rng-dropout-differs-on-replicas",
    symptom="Replicated activations drop different elements on each rank, and replicas drift apart.",
    capability="rng",
    layer="l2",
    must_fail=["RN-2-01"],
)
def dropout_differs_on_replicas(patch: Patch) -> None:
    @patch.around(f"{_OURS}:distributed_dropout", parameters=("tensor", "p", "training"))
    def dropout(original: Any, tensor: Any, p: float = 0.5, training: bool = True) -> Any:
        if training and all(placement.is_replicate() for placement in tensor.placements) and dist.get_rank():
            patch.reached()
            torch.rand(1)
        return original(tensor, p, training)


@fault(
    id="rng-seed-of-each-rank",
    symptom="With a seed that was read from the clock, replicas start with different weights.",
    capability="rng",
    layer="l2",
    must_fail=["RN-2-01"],
)
def seed_of_each_rank(patch: Patch) -> None:
    @patch.around(f"{_OURS}:manual_seed", parameters=("seed", "device_mesh"))
    def manual_seed(_: Any, seed: int, device_mesh: Any) -> None:
        patch.reached()
        torch.manual_seed(seed)


@fault(
    id="rng-resume-forgets-the-default-stream",
    symptom="The loss curve after a resume is not the one without it.",
    capability="rng",
    layer="l1",
    must_fail=["RN-1-01", "RN-2-01"],
    ranks="all",
)
def resume_forgets_the_default_stream(patch: Patch) -> None:
    @patch.around(f"{_OURS}:set_rng_state", parameters=("state", "device_mesh"))
    def set_rng_state(_: Any, state: Any, device_mesh: Any) -> None:
        patch.reached()

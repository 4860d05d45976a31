"""Faults of dry runs on torch_native, seen in one process: what is counted twice, halved, left out or left behind."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import torch

from hyper_parallel_tests.faults import Patch, fault

_OURS = "hyper_parallel_tests.engines.torch_native.dry_run"


@fault(
    id="dry-run-one-state-of-two",
    symptom="The estimate fits and training does not: of Adam's two states one is counted.",
    capability="dry_run",
    layer="l0",
    must_fail=["MO-0-01"],
)
def one_state_of_two(patch: Patch) -> None:
    @patch.around(f"{_OURS}:states_of", parameters=("optimizer",))
    def states(original: Any, optimizer: Any) -> int:
        for state in optimizer.state.values():
            if state.pop("exp_avg_sq", None) is not None:
                patch.reached()
        return original(optimizer)


@fault(
    id="dry-run-before-the-first-update",
    symptom="The estimate has no states of the optimizer at all: they come with the first update.",
    capability="dry_run",
    layer="l0",
    must_fail=["MO-0-01"],
)
def before_the_first_update(patch: Patch) -> None:
    @patch.around(f"{_OURS}:estimate", parameters=("program",))
    def estimate(original: Any, program: Any) -> Any:
        patch.reached()
        program.optimizer.step = lambda: None
        return original(program)


@fault(
    id="dry-run-views-counted",
    symptom="Activations are estimated much too high: each saved view counts, and they share storages.",
    capability="dry_run",
    layer="l0",
    must_fail=["MO-0-01"],
)
def views_counted(patch: Patch) -> None:
    @patch.around(f"{_OURS}:forward", parameters=("program",))
    def forward(_: Any, program: Any) -> Any:
        sizes: list[int] = []

        def pack(tensor: Any) -> Any:
            patch.reached()
            sizes.append(tensor.nbytes)
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            return program.forward(), sum(sizes)


@fault(
    id="dry-run-one-micro-batch",
    symptom="A pipeline's first stages run out of memory: the estimate is of one micro-batch.",
    capability="dry_run",
    layer="l0",
    must_fail=["MO-0-01"],
)
def one_micro_batch(patch: Patch) -> None:
    @patch.around(f"{_OURS}:estimate", parameters=("program",))
    def estimate(original: Any, program: Any) -> Any:
        if program.in_flight > 1:
            patch.reached()
            object.__setattr__(program, "in_flight", 1)
        return original(program)


@fault(
    id="dry-run-whole-parameters",
    symptom="However many ranks there are, the estimate is of the whole model.",
    capability="dry_run",
    layer="l0",
    must_fail=["MO-0-01"],
)
def whole_parameters(patch: Patch) -> None:
    @patch.around(f"{_OURS}:bytes_of", parameters=("tensors",))
    def size(original: Any, tensors: Any) -> int:
        tensors = list(tensors)
        ranks = [one.device_mesh.size() for one in tensors if hasattr(one, "device_mesh")]
        if not ranks or max(ranks) == 1:
            return original(tensors)
        patch.reached()
        return sum(one.numel() * one.element_size() for one in tensors)


@fault(
    id="dry-run-always-of-rank-0",
    symptom="Ranks with shorter or empty shards are told the bytes of the first.",
    capability="dry_run",
    layer="l0",
    must_fail=["MO-0-01"],
)
def always_of_rank_0(patch: Patch) -> None:
    @patch.around(f"{_OURS}:simulated_world", parameters=("rank", "world_size"))
    def world(original: Any, rank: int, world_size: int) -> Any:
        if rank:
            patch.reached()
        return original(0, world_size)


@fault(
    id="dry-run-moves-the-random-state",
    symptom="Training after a dry run starts from other weights than without one.",
    capability="dry_run",
    layer="l0",
    must_fail=["MO-0-01"],
)
def moves_the_random_state(patch: Patch) -> None:
    @patch.around(f"{_OURS}:estimate", parameters=("program",))
    def estimate(original: Any, program: Any) -> Any:
        found = original(program)
        patch.reached()
        torch.manual_seed(1234)
        return found

    @patch.around("torch.random:fork_rng", parameters=("devices",))
    def fork(_: Any, *args: Any, **options: Any) -> Any:
        return nullcontext()


@fault(
    id="dry-run-groups-of-the-rank-before",
    symptom="The second rank of one process fails: its tensors ask for groups of the first.",
    capability="dry_run",
    layer="l0",
    must_fail=["MO-0-01"],
)
def groups_of_the_rank_before(patch: Patch) -> None:
    @patch.around(f"{_OURS}:_own_caches", parameters=())
    def caches(_: Any) -> Any:
        patch.reached()
        return nullcontext()

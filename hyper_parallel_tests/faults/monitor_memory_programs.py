"""Faults of dry runs on torch_native, seen with programs out of the ordinary."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any
from unittest import mock

import torch
from torch._subclasses.fake_tensor import unset_fake_temporarily

from hyper_parallel_tests.faults import Patch, fault

_OURS = "hyper_parallel_tests.engines.torch_native.dry_run"


@fault(
    id="dry-run-buffers-counted",
    symptom="Masks and other buffers are counted as activations.",
    capability="dry_run",
    layer="l0",
    must_fail=["MO-0-01"],
)
def buffers_counted(patch: Patch) -> None:
    @patch.around(f"{_OURS}:forward", parameters=("program",))
    def forward(original: Any, program: Any) -> Any:
        if list(program.model.buffers()):
            patch.reached()
        with mock.patch.object(program.model, "buffers", list):
            return original(program)


@fault(
    id="dry-run-frozen-gradients",
    symptom="A fine-tuning of a few layers is said not to fit: gradients of frozen ones are counted.",
    capability="dry_run",
    layer="l0",
    must_fail=["MO-0-01"],
)
def frozen_gradients(patch: Patch) -> None:
    @patch.around(f"{_OURS}:estimate", parameters=("program",))
    def estimate(original: Any, program: Any) -> Any:
        found = original(program)
        frozen = [one for one in program.model.parameters() if not one.requires_grad]
        if frozen:
            patch.reached()
        return replace(found, gradients=found.gradients + sum(one.nbytes for one in frozen))


@fault(
    id="dry-run-four-bytes-an-element",
    symptom="In half precision the estimate is twice what is held.",
    capability="dry_run",
    layer="l0",
    must_fail=["MO-0-01"],
)
def four_bytes_an_element(patch: Patch) -> None:
    @patch.around(f"{_OURS}:bytes_of", parameters=("tensors",))
    def size(original: Any, tensors: Any) -> int:
        tensors = list(tensors)
        if any(one.dtype is torch.bfloat16 for one in tensors):
            patch.reached()
            return 2 * original(tensors)
        return original(tensors)


@fault(
    id="dry-run-tokens-lost",
    symptom="Where tokens do not divide by experts, some of them are in no estimate.",
    capability="dry_run",
    layer="l0",
    must_fail=["MO-0-01"],
)
def tokens_lost(patch: Patch) -> None:
    @patch.around(f"{_OURS}:_BalancedRouting.__torch_dispatch__", parameters=("self", "func"))
    def dispatch(original: Any, self: Any, func: Any, *args: Any) -> Any:
        counts = original(self, func, *args)
        if func is not torch.ops.aten.bincount.default:
            return counts
        patch.reached()
        with unset_fake_temporarily():
            return torch.full_like(counts, min(counts.tolist()))


@fault(
    id="dry-run-failure-leaves-its-world",
    symptom="After a program that failed the process is a rank of a world that is not there.",
    capability="dry_run",
    layer="l0",
    must_fail=["MO-0-01"],
)
def failure_leaves_its_world(patch: Patch) -> None:
    @patch.around(f"{_OURS}:simulated_world", parameters=("rank", "world_size"))
    @contextmanager
    def world(original: Any, rank: int, world_size: int) -> Iterator[None]:
        there = original(rank, world_size)
        there.__enter__()
        try:
            yield
        except ZeroDivisionError:
            patch.reached()
            patch.at_the_end(lambda: there.__exit__(None, None, None))
            raise
        there.__exit__(None, None, None)

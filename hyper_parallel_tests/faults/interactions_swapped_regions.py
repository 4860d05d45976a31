"""Faults that show only where regions are swapped, and their blocks sharded, on torch_native."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import CheckpointWrapper
from torch.distributed.fsdp import FSDPModule

from hyper_parallel_tests.faults import Patch, fault

_SWAP = "hyper_parallel_tests.engines.torch_native.activation_swap"


def _has(module: Any, kind: type) -> bool:
    return any(isinstance(one, kind) for one in module.modules())


def _packed_by_sharded_regions(patch: Patch) -> Callable[[Callable[[Any, Any], None]], None]:
    """Decorator: what happens to the handle of a tensor that is saved where a swapped region has sharded blocks."""
    inside: list[bool] = []

    def put(happens: Callable[[Any, Any], None]) -> None:
        @patch.around(f"{_SWAP}.wrapper:SwapWrapper.forward", parameters=("self",))
        def forward(original: Any, self: Any, *args: Any, **kwargs: Any) -> Any:
            inside.append(_has(self, CheckpointWrapper) and _has(self, FSDPModule))
            try:
                return original(self, *args, **kwargs)
            finally:
                inside.pop()

        @patch.around(f"{_SWAP}.manager:_Manager.pack", parameters=("self", "tensor"))
        def pack(original: Any, self: Any, tensor: Any) -> Any:
            handle = original(self, tensor)
            if inside[-1:] == [True]:
                happens(handle, tensor)
            return handle

    return put


@fault(
    id="ix-sharded-regions-run-on-half-an-input",
    symptom="With swap and recomputation sharded layers learn wrongly: they run again before their input is back.",
    capability="activation_swap",
    layer="l3",
    must_fail=["FSDP-L2-06"],
    ranks="all",
)
def sharded_regions_run_on_half_an_input(patch: Patch) -> None:
    early: weakref.WeakSet[Any] = weakref.WeakSet()

    @_packed_by_sharded_regions(patch)
    def pack(handle: Any, tensor: Any) -> None:
        if tensor.is_floating_point():
            early.add(handle)

    @patch.around(f"{_SWAP}.saved:Handle.tensor", parameters=("self",))
    def tensor(original: Any, self: Any) -> Any:
        found = original(self)
        if self not in early or self.saved.transfer is None:
            return found
        patch.reached()
        half = found.shape[0] // 2
        return torch.cat((found[:half], torch.zeros_like(found[half:])))


@fault(
    id="ix-host-copies-of-sharded-regions-kept",
    symptom="With swap and recomputation host memory fills step by step: copies stay there after they came back.",
    capability="activation_swap",
    layer="l3",
    must_fail=["FSDP-L2-06"],
    ranks="all",
)
def host_copies_of_sharded_regions_kept(patch: Patch) -> None:
    of_regions: weakref.WeakSet[Any] = weakref.WeakSet()
    kept: list[Any] = []

    @_packed_by_sharded_regions(patch)
    def pack(handle: Any, tensor: Any) -> None:
        of_regions.add(handle.saved)

    @patch.around(f"{_SWAP}.saved:Saved.arrive", parameters=("self",))
    def arrive(original: Any, self: Any) -> None:
        if self in of_regions:
            patch.reached()
            kept.append(self.there)
        original(self)

"""Faults of activation checkpointing on torch_native: random and autocast state of the second run."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from hyper_parallel_tests.faults import Patch, fault

_TORCH = "torch.utils.checkpoint"


@fault(
    id="ac-random-state-not-restored",
    symptom="With dropout and recomputation the loss goes down more slowly: gradients are those of other masks.",
    capability="activation_checkpoint",
    layer="l1",
    must_fail=["AC-1-02"],
)
def random_state_not_restored(patch: Patch) -> None:
    target = f"{_TORCH}:_checkpoint_without_reentrant_generator"

    @patch.around(target, parameters=("fn", "preserve_rng_state"))
    def generator(original: Any, fn: Any, preserve_rng_state: bool, *args: Any, **options: Any) -> Any:
        patch.reached()
        return original(fn, False, *args, **options)


def _stream_moved(patch: Patch, always: bool) -> None:
    """A fork of the random state that does not come back, always or after an exception alone."""

    @patch.around("torch.random:fork_rng")
    @contextmanager
    def fork(original: Any, *args: Any, **options: Any) -> Iterator[None]:
        # Regions alone say whether they want a fork: others here are of the cases.
        if not options.get("enabled"):
            with original(*args, **options):
                yield
            return
        before = torch.get_rng_state()
        try:
            yield
        except BaseException as error:
            # An early stop is an exception of PyTorch's own.
            if always or type(error).__name__ != "_StopRecomputationError":
                patch.reached()
                raise
            torch.set_rng_state(before)
            raise
        if always:
            patch.reached()
        else:
            torch.set_rng_state(before)


@fault(
    id="ac-stream-left-where-the-region-began",
    symptom="Numbers that are drawn after backward repeat those of the forward pass.",
    capability="activation_checkpoint",
    layer="l1",
    must_fail=["AC-1-02"],
)
def stream_left_where_the_region_began(patch: Patch) -> None:
    _stream_moved(patch, always=True)


@fault(
    id="ac-exception-moves-the-stream",
    symptom="A step that was interrupted and repeated drops other elements from then on.",
    capability="activation_checkpoint",
    layer="l1",
    must_fail=["AC-1-02"],
)
def exception_moves_the_stream(patch: Patch) -> None:
    _stream_moved(patch, always=False)


@fault(
    id="ac-autocast-not-restored",
    symptom="Under autocast, regions run again in fp32: slow, and with other gradients.",
    capability="activation_checkpoint",
    layer="l1",
    must_fail=["AC-1-02"],
)
def autocast_not_restored(patch: Patch) -> None:
    @patch.around(f"{_TORCH}:_get_autocast_kwargs", parameters=("device_type",))
    def found(original: Any, *args: Any, **options: Any) -> Any:
        device, cpu = original(*args, **options)
        if cpu["enabled"]:
            patch.reached()
        return device and device | {"enabled": False}, cpu | {"enabled": False}


@fault(
    id="ac-failed-region-leaves-its-hooks",
    symptom="After an interrupted forward pass all layers save nothing and backward fails until the program ends.",
    capability="activation_checkpoint",
    layer="l1",
    must_fail=["AC-1-02"],
)
def failed_region_leaves_its_hooks(patch: Patch) -> None:
    @patch.around("torch.autograd.graph:saved_tensors_hooks.__exit__")
    def leave(original: Any, self: Any, kind: Any, *args: Any) -> None:
        failed = kind is not None and kind.__name__ not in ("_StopRecomputationError", "GeneratorExit")
        if not failed or type(self).__name__ != "_checkpoint_hook":
            original(self, kind, *args)
            return
        patch.reached()
        patch.at_the_end(torch._C._autograd._pop_saved_tensors_default_hooks)

"""Faults of sharded parameters that show after many steps of one model only, on torch_native."""

from __future__ import annotations

import math
import os
import threading
from collections.abc import Callable
from typing import Any
from weakref import WeakKeyDictionary

import torch

from hyper_parallel_tests.faults import Patch, fault

# More steps than a case of a lower layer trains one model.
_FIRST = 30


def _late_steps(patch: Patch, *, every: int = 1) -> Callable[[Callable[[Any], None]], None]:
    """Decorator: what happens to a model's state at the end of backward from step 30 on, every so many steps."""
    steps: WeakKeyDictionary[Any, int] = WeakKeyDictionary()

    def put(happens: Callable[[Any], None]) -> None:
        @patch.around(
            "torch.distributed.fsdp._fully_shard._fsdp_state:FSDPState._root_post_backward_final_callback",
            parameters=("self",),
        )
        def callback(original: Any, self: Any) -> None:
            original(self)
            step = steps[self] = steps.get(self, -1) + 1
            if step >= _FIRST and (step - _FIRST) % every == 0:
                patch.reached()
                happens(self)

    return put


def _gradients(state: Any) -> list[torch.Tensor]:
    """This rank's parts of the gradients of the outermost unit."""
    params = [one.sharded_param for group in state._fsdp_param_groups for one in group.fsdp_params]
    return [one.grad.to_local() for one in params if one.grad is not None]


@fault(
    id="endurance-shards-keep-a-tensor",
    symptom="Memory grows by a few bytes a step: after a week the run is killed.",
    capability="fully_shard",
    layer="l4",
    must_fail=["EN-01"],
    ranks="all",
)
def keep_a_tensor(patch: Patch) -> None:
    kept: list[torch.Tensor] = []
    patch.at_the_end(kept.clear)

    @_late_steps(patch)
    def keep(_: Any) -> None:
        kept.append(torch.zeros(1))


@fault(
    id="endurance-shards-keep-a-descriptor",
    symptom="After some ten thousand steps nothing can be opened any more: too many open files.",
    capability="fully_shard",
    layer="l4",
    must_fail=["EN-01"],
    ranks="all",
)
def keep_a_descriptor(patch: Patch) -> None:
    kept: list[int] = []
    patch.at_the_end(lambda: [os.close(one) for one in kept])

    @_late_steps(patch, every=5)
    def keep(_: Any) -> None:
        kept.append(os.dup(1))


@fault(
    id="endurance-shards-not-finite",
    symptom="Training is fine for hours, and then every loss is NaN.",
    capability="fully_shard",
    layer="l4",
    must_fail=["EN-01"],
    ranks="all",
    applied_on=[1],
)
def not_finite(patch: Patch) -> None:
    @_late_steps(patch, every=10**9)
    def spoil(state: Any) -> None:
        _gradients(state)[0].view(-1)[0] = math.nan


@fault(
    id="endurance-shards-drift",
    symptom="The loss curve leaves the single card's after some time: from then on gradients are too large.",
    capability="fully_shard",
    layer="l4",
    must_fail=["EN-01"],
    ranks="all",
)
def drift(patch: Patch) -> None:
    @_late_steps(patch)
    def enlarge(state: Any) -> None:
        for one in _gradients(state):
            one.mul_(1.05)


@fault(
    id="endurance-shards-hang",
    symptom="A rank stops in the middle of the night, and the others wait for it.",
    capability="fully_shard",
    layer="l4",
    must_fail=["EN-01"],
    ranks="any",
    applied_on=[1],
    watchdog=20,
)
def hang(patch: Patch) -> None:
    @_late_steps(patch)
    def wait(_: Any) -> None:
        threading.Event().wait()

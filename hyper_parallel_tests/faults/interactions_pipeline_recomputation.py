"""Faults that show only where regions are recomputed micro-batch by micro-batch, on torch_native."""

from __future__ import annotations

import weakref
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import CheckpointWrapper

from hyper_parallel_tests.faults import Patch, fault


@fault(
    id="ix-region-keeps-the-latest-random-state",
    symptom="With dropout stages that recompute learn from other masks than forward had: those of a later micro-batch.",
    capability="activation_checkpoint",
    layer="l3",
    must_fail=["IX-08"],
    ranks="any",
)
def region_keeps_the_latest_random_state(patch: Patch) -> None:
    under_way: dict[int, weakref.WeakSet[Any]] = {}

    @patch.around("torch.utils.checkpoint:_CheckpointFrame.__init__", parameters=("self", "recompute_fn"))
    def init(original: Any, self: Any, recompute_fn: Any, *args: Any, **kwargs: Any) -> None:
        original(self, recompute_fn, *args, **kwargs)
        kept = dict(zip(recompute_fn.__code__.co_freevars, recompute_fn.__closure__, strict=True))
        state, others = kept["fwd_cpu_state"], under_way.setdefault(id(kept["fn"].cell_contents), weakref.WeakSet())
        for one in others:
            place = one.__code__.co_freevars.index("fwd_cpu_state")
            if not one.__closure__[place].cell_contents.equal(state.cell_contents):
                patch.reached()
                one.__closure__[place].cell_contents = state.cell_contents
        others.add(recompute_fn)


@fault(
    id="ix-message-that-nobody-takes",
    symptom="Pipelines that recompute are slower the longer they run: each step sends one message too many.",
    capability="pipeline_parallel",
    layer="l3",
    must_fail=["IX-08"],
)
def message_that_nobody_takes(patch: Patch) -> None:
    @patch.around(
        "hyper_parallel_tests.engines.torch_native.pipeline_parallel.schedules:_Schedule._train",
        parameters=("self", "args", "kwargs"),
    )
    def train(original: Any, self: Any, *given: Any) -> Any:
        outputs = original(self, *given)
        stage = self._stages[-1]
        if stage.is_last and any(isinstance(one, CheckpointWrapper) for one in stage.submod.modules()):
            patch.reached()
            # Under a tag of its own, so that nothing else is taken for it.
            dist.isend(torch.zeros(1, device=stage.device), group=stage.group, group_dst=0, tag=1)
        return outputs

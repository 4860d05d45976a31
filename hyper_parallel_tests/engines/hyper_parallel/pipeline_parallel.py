"""Pipeline parallelism: HyperParallel's stages and schedules, the losses of whose micro-batches are summed."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed import ProcessGroup

from hyper_parallel_tests.engines.hyper_parallel.library import find, offered, refuse
from hyper_parallel_tests.engines.port import Unsupported

__all__ = [
    "PipelineStage",
    "Schedule1F1B",
    "ScheduleAcrossMeshes",
    "ScheduleFromCsv",
    "ScheduleGPipe",
    "ScheduleInterleaved1F1B",
    "ScheduleInterleavedZeroBubble",
    "ScheduleZBVZeroBubble",
    "SharedParameterInfo",
]

_PLACE = "hyper_parallel.core.pipeline_parallel"
_STAGE = find("hyper_parallel:PipelineStage", f"{_PLACE}:PipelineStage")
_NONE = "this version of the library has no pipelines"


def _stage(
    submodule: nn.Module,
    stage_index: int,
    stage_num: int,
    device: torch.device | None = None,
    group: ProcessGroup | None = None,
    **options: Any,
) -> Any:
    """See the port."""
    unknown = options.keys() - inspect.signature(_STAGE).parameters.keys()
    if unknown:
        refuse("PipelineStage", f"this version of the library has stages without {', '.join(sorted(unknown))}")
    return _STAGE(submodule, stage_index, stage_num, device=device, group=group, **options)


class _Schedule:
    """See the port: the library's schedule, of which ``run`` is called as it is."""

    def __init__(self, schedule: Any) -> None:
        self._schedule = schedule

    def run(self, *args: Any, **kwargs: Any) -> list[Any]:
        """See the port. What the library returns has its graph yet."""
        return [_detached(one) for one in self._schedule.run(*args, **kwargs)]


def _schedule(name: str) -> Any:
    found = offered(f"hyper_parallel:{name}", f"{_PLACE}:{name}", reason=f"this version of the library has no {name}")
    if isinstance(found, Unsupported):
        return found

    def make(
        stages: Any,
        micro_batch_num: int,
        args_batch_dim: Sequence[Any] | None = None,
        kwargs_batch_dim: Mapping[str, Any] | None = None,
        *,
        overlap_p2p: bool | None = None,
    ) -> _Schedule:
        """See the port."""
        options: dict[str, Any] = {"args_batch_dim": args_batch_dim, "kwargs_batch_dim": kwargs_batch_dim}
        if overlap_p2p is not None:
            if "overlap_p2p" not in inspect.signature(found).parameters:
                refuse(name, "this version of the library has no overlap_p2p that its schedules take")
            options["overlap_p2p"] = overlap_p2p
        return _Schedule(found(stages, micro_batch_num, **options))

    return make


def _detached(value: Any) -> Any:
    return torch.utils._pytree.tree_map(lambda one: one.detach() if isinstance(one, Tensor) else one, value)


PipelineStage = Unsupported(_NONE) if _STAGE is None else _stage
SharedParameterInfo = offered(f"{_PLACE}.stage:SharedParameterInfo", f"{_PLACE}:SharedParameterInfo", reason=_NONE)
ScheduleGPipe = _schedule("ScheduleGPipe")
Schedule1F1B = _schedule("Schedule1F1B")
ScheduleInterleaved1F1B = _schedule("ScheduleInterleaved1F1B")
ScheduleInterleavedZeroBubble = _schedule("ScheduleInterleavedZeroBubble")
ScheduleZBVZeroBubble = _schedule("ScheduleZBVZeroBubble")
ScheduleFromCsv = Unsupported("the library runs its own schedules only, none from a file")
ScheduleAcrossMeshes = Unsupported("the library's stages have the same number of cards")

"""Pipeline parallelism of torch_native: torch.distributed.pipelining, and plain references for what it lacks."""

from hyper_parallel_tests.engines.torch_native.pipeline_parallel.across import ScheduleAcrossMeshes
from hyper_parallel_tests.engines.torch_native.pipeline_parallel.schedules import (
    Schedule1F1B,
    ScheduleFromCsv,
    ScheduleGPipe,
    ScheduleInterleaved1F1B,
    ScheduleInterleavedZeroBubble,
    ScheduleZBVZeroBubble,
)
from hyper_parallel_tests.engines.torch_native.pipeline_parallel.shared import SharedParameterInfo
from hyper_parallel_tests.engines.torch_native.pipeline_parallel.stage import PipelineStage

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

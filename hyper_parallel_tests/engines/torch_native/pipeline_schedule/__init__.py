"""Pipeline schedules of torch_native: PyTorch's tables and micro-batches, references for stages and for Mpipe."""

from hyper_parallel_tests.engines.torch_native.pipeline_schedule.microbatches import (
    BatchDimSpec,
    merge_microbatches,
    split_microbatches,
    split_target,
)
from hyper_parallel_tests.engines.torch_native.pipeline_schedule.mpipe import (
    mpipe_assignment,
    mpipe_reordering,
    mpipe_restore,
    mpipe_table,
    mpipe_transpose,
)
from hyper_parallel_tests.engines.torch_native.pipeline_schedule.stages import split_into_stages
from hyper_parallel_tests.engines.torch_native.pipeline_schedule.tables import (
    dump_schedule_csv,
    load_schedule_csv,
    schedule_table,
)

__all__ = [
    "BatchDimSpec",
    "dump_schedule_csv",
    "load_schedule_csv",
    "merge_microbatches",
    "mpipe_assignment",
    "mpipe_reordering",
    "mpipe_restore",
    "mpipe_table",
    "mpipe_transpose",
    "schedule_table",
    "split_into_stages",
    "split_microbatches",
    "split_target",
]

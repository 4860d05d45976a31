"""A schedule's file with sends and receives is not checked: one that nobody receives is taken, and its step hangs."""

import tempfile
from types import SimpleNamespace

from torch.distributed.pipelining.schedules import _PipelineScheduleRuntime

stages = [SimpleNamespace(group_size=2, group_rank=0, num_stages=2, stage_index=one) for one in range(2)]
runtime = _PipelineScheduleRuntime(stages, 1)
with tempfile.NamedTemporaryFile("w", suffix=".csv") as file:
    # Rank 1 computes without having received.
    file.write("0F0,0SEND_F0,0RECV_B0,0B0\n1F0,1B0,1SEND_B0\n")
    file.flush()
    try:
        runtime._load_csv(file.name, "compute_comms")
    except (AssertionError, ValueError) as refusal:
        print(refusal)
    else:
        print(f"taken as {runtime.pipeline_order_with_comms}")
        raise AssertionError("a schedule without a receive is taken")

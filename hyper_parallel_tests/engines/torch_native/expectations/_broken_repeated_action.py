"""A schedule's file with an action twice, or with other micro-batches than there are, is taken."""

import tempfile
from types import SimpleNamespace

from torch.distributed.pipelining.schedules import _PipelineScheduleRuntime

taken = []
for text in ("0F0,0F1,0B0,0B1,0B0\n", "0F0,0F2,0B0,0B2\n"):
    stage = SimpleNamespace(group_size=1, group_rank=0, num_stages=1, stage_index=0)
    with tempfile.NamedTemporaryFile("w", suffix=".csv") as file:
        file.write(text)
        file.flush()
        try:
            _PipelineScheduleRuntime([stage], 2)._load_csv(file.name)
            taken.append(text.strip())
        except (AssertionError, ValueError) as refusal:
            print(refusal)

print(f"taken for one stage and micro-batches 0 and 1: {taken}")
assert not taken

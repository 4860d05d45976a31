"""Interleaved 1F1B with fewer micro-batches than ranks computes backward before it has received the gradient."""

from hyper_parallel.core.pipeline_parallel import PipelineStage, ScheduleInterleaved1F1B
from torch import nn


class PlannedStage(PipelineStage):
    """A stage that makes no group of ranks."""

    def init(self, virtual_chunk_num):
        pass


wrong = []
for ranks, microbatches in ((3, 1), (4, 1), (4, 2), (4, 3), (8, 2)):
    stages = [PlannedStage(nn.Identity(), stage, 2 * ranks) for stage in (0, ranks)]
    for rank, steps in ScheduleInterleaved1F1B(stages, microbatches).exec_order.items():
        steps = [step for step in steps if step is not None]
        place = {(step.type.name, step.stage_index, step.micro_index): at for at, step in enumerate(steps)}
        for (kind, stage, micro), at in place.items():
            if kind == "BWD" and stage < 2 * ranks - 1 and place["BWD_RECV", stage, micro] > at:
                wrong.append(f"{ranks} ranks, {microbatches} micro-batches: stage {stage} on rank {rank}, {micro}")

print("backward before its gradient is received:", *wrong, sep="\n  ")
assert not wrong

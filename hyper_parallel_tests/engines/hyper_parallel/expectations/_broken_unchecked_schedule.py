"""1F1B takes several stages of one rank and plans only for one; it takes no micro-batches, too."""

from hyper_parallel.core.pipeline_parallel import PipelineStage, Schedule1F1B
from torch import nn


class PlannedStage(PipelineStage):
    """A stage that makes no group of ranks."""

    def init(self, virtual_chunk_num):
        pass


taken = []
for numbers, microbatches in (((0, 2), 8), ((0,), 0)):
    stages = [PlannedStage(nn.Identity(), number, 2 * len(numbers)) for number in numbers]
    try:
        order = Schedule1F1B(stages, microbatches).exec_order
        taken.append((len(numbers), microbatches, sorted({step.stage_index for one in order.values() for step in one})))
    except ValueError as refusal:
        print(refusal)

for count, microbatches, planned in taken:
    print(f"{count} stages on each of two ranks, {microbatches} micro-batches: the order has the stages {planned}")
assert not taken

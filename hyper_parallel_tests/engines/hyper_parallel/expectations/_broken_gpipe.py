"""ScheduleGPipe cannot be made. Expected: its order, got an AttributeError."""

import torch.distributed as dist
from hyper_parallel.core.pipeline_parallel import PipelineStage, ScheduleGPipe
from torch import nn

if __name__ == "__main__":
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        print(ScheduleGPipe(PipelineStage(nn.Linear(2, 2), 0, 2, group=dist.group.WORLD), 2).exec_order)
    except AttributeError as error:
        print(f"AttributeError: {error}")
    dist.destroy_process_group()

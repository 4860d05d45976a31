"""The first step of a pipeline computes the first micro-batch twice, by which stages learn shapes. Expected: 4."""

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.pipelining import PipelineStage, ScheduleGPipe

if __name__ == "__main__":
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    norm = nn.BatchNorm1d(4)
    stage = PipelineStage(norm, 0, 1, torch.device("cpu"))
    ScheduleGPipe(stage, 4, loss_fn=nn.functional.mse_loss).step(torch.randn(8, 4), target=torch.randn(8, 4))
    print(norm.num_batches_tracked.item())
    dist.destroy_process_group()

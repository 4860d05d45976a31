"""A pipeline of one stage has no backward. Expected: a gradient, got a RuntimeError."""

import torch
import torch.distributed as dist
from hyper_parallel.core.pipeline_parallel import PipelineStage, Schedule1F1B
from torch import nn

if __name__ == "__main__":
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    module = nn.Linear(2, 1)
    try:
        Schedule1F1B(PipelineStage(module, 0, 1, torch.device("cpu"), dist.group.WORLD), 2).run(torch.ones(2, 2))
        print(module.weight.grad)
    except RuntimeError as error:
        print(f"RuntimeError: {error}")
    dist.destroy_process_group()

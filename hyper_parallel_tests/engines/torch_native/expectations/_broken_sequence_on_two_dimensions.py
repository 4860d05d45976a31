"""SequenceParallel accepts a mesh of two dimensions, with one placement for both. Expected: ValueError."""

import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.parallel import SequenceParallel, parallelize_module

if __name__ == "__main__":
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    norm = parallelize_module(nn.LayerNorm(4), init_device_mesh("cpu", (1, 1)), SequenceParallel())
    print(norm.weight.device_mesh.ndim, norm.weight.placements)
    dist.destroy_process_group()

"""A tied weight under two names of a plan becomes two parameters. Expected: True."""

import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

if __name__ == "__main__":
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    model = nn.ModuleDict({"embedding": nn.Embedding(8, 4), "output": nn.Linear(4, 8, bias=False)})
    model["output"].weight = model["embedding"].weight
    plan = {"embedding": RowwiseParallel(input_layouts=Replicate()), "output": ColwiseParallel()}
    parallelize_module(model, init_device_mesh("cpu", (1,)), plan)
    print(model["output"].weight is model["embedding"].weight)
    dist.destroy_process_group()

"""The gradient of a sharded parameter is a plain tensor of this rank's part, without a layout."""

import torch
import torch.distributed as dist
from _any_revision import fully_shard, init_device_mesh
from torch import nn
from torch.testing._internal.distributed.fake_pg import FakeStore

if __name__ == "__main__":
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
    mesh = init_device_mesh("cpu", (2,), mesh_dim_names=("dp",))
    layer = fully_shard(nn.Linear(4, 4), mesh=mesh)
    layer(torch.ones(1, 4)).sum().backward()
    parameter = next(layer.parameters())
    print(f"expected {type(parameter).__name__} {tuple(parameter.shape)}, like the parameter,", end=" ")
    print(f"got {type(parameter.grad).__name__} {tuple(parameter.grad.shape)}")

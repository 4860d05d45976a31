"""Backward ends in an assertion where a parameter got no gradient."""

import torch
import torch.distributed as dist
from _any_revision import fully_shard, init_device_mesh
from torch import nn
from torch.testing._internal.distributed.fake_pg import FakeStore

if __name__ == "__main__":
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
    mesh = init_device_mesh("cpu", (2,), mesh_dim_names=("dp",))
    layer = nn.Linear(4, 4)
    layer.unused = nn.Parameter(torch.ones(4))
    fully_shard(layer, mesh=mesh)
    try:
        layer(torch.ones(1, 4)).sum().backward()
    except AssertionError as error:
        print(f"expected nothing, got {type(error).__name__}: {error}")

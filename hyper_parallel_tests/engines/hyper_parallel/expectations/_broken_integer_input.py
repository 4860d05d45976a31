"""A wrapped module fails on an input of integers, since every first input is made to require a gradient."""

import torch
import torch.distributed as dist
from _any_revision import fully_shard, init_device_mesh
from torch import nn
from torch.testing._internal.distributed.fake_pg import FakeStore

if __name__ == "__main__":
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
    layer = fully_shard(nn.Embedding(4, 4), mesh=init_device_mesh("cpu", (2,), mesh_dim_names=("dp",)))
    try:
        print(f"as expected, {tuple(layer(torch.arange(4)).shape)}")
    except RuntimeError as error:
        print(f"expected no error, got {error}")

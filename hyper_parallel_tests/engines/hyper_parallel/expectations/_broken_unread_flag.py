"""set_requires_all_reduce writes a flag that nothing reads: gradients go over the replicas all the same."""

import torch
import torch.distributed as dist
from _any_revision import fully_shard, init_device_mesh
from torch import nn
from torch.testing._internal.distributed.fake_pg import FakeStore

if __name__ == "__main__":
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=4)
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard"))
    layer = fully_shard(nn.Linear(4, 4), mesh=mesh)
    layer.set_requires_all_reduce(False)
    dist.all_reduce = lambda *args, **options: print("expected no all-reduce, got one")
    layer(torch.ones(1, 4)).sum().backward()

"""fully_shard takes what can never gather, and its errors for what it does not take speak of something else."""

import torch.distributed as dist
from _any_revision import fully_shard, init_device_mesh
from torch import nn
from torch.testing._internal.distributed.fake_pg import FakeStore

if __name__ == "__main__":
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
    mesh = init_device_mesh("cpu", (2,), mesh_dim_names=("dp",))
    twice, parent = nn.Linear(4, 4), nn.Sequential(nn.Linear(4, 4))
    fully_shard(twice, mesh=mesh)
    fully_shard(parent, mesh=mesh)
    for what, module in {
        "wrapped twice": twice,
        "child of a wrapped one": parent[0],
        "a list, which has no forward": nn.ModuleList([nn.Linear(4, 4)]),
        "no module": None,
    }.items():
        try:
            fully_shard(module, mesh=mesh)
            print(f"{what}: expected an error, got none")
        except Exception as error:
            print(f"{what}: expected an error that says so, got {type(error).__name__}: {error}")

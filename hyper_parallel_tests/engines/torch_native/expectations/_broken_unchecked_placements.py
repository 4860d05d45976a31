"""Placements that cannot be: accepted, or refused in words that name neither the dimension nor the mesh."""

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor, ones
from torch.testing._internal.distributed.fake_pg import FakeStore

if __name__ == "__main__":
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
    mesh, full = init_device_mesh("cpu", (2,)), torch.ones(6, 4)
    whole = distribute_tensor(full, mesh, [Replicate()], src_data_rank=None)
    for what, attempt in {
        "factory, dimension 2 of 2": lambda: ones(6, 4, device_mesh=mesh, placements=[Shard(2)]),
        "factory, a word": lambda: ones(6, 4, device_mesh=mesh, placements=["dp"]),
        "dimension -3 of 2": lambda: distribute_tensor(full, mesh, [Shard(-3)], src_data_rank=None),
        "from_local, no placement for a dimension": lambda: DTensor.from_local(full, mesh, []),
        "redistribute, two placements for one dimension": lambda: whole.redistribute(mesh, [Shard(0), Replicate()]),
    }.items():
        try:
            print(f"{what}: accepted {attempt().placements}")
        except Exception as error:
            print(f"{what}: {type(error).__name__}: {error}")
    dist.destroy_process_group()

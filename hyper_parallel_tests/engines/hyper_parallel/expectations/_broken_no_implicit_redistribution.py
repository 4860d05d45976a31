"""An operation that needs its input otherwise than it lies is an error; nothing is redistributed for it."""

import torch
import torch.distributed as dist
from hyper_parallel import init_device_mesh
from hyper_parallel.core.dtensor import distribute_tensor
from hyper_parallel.core.placement_types import Partial, Replicate, Shard
from torch.testing._internal.distributed.fake_pg import FakeStore

if __name__ == "__main__":
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
    mesh, full = init_device_mesh("cpu", (2,), mesh_dim_names=("tp",)), torch.ones(4, 4)
    columns, whole, terms = (distribute_tensor(full, mesh, [one]) for one in (Shard(1), Replicate(), Partial("sum")))
    for what, attempt in {
        "softmax of divided rows": lambda: torch.softmax(columns, 1),
        "relu of terms": lambda: torch.relu(terms),
        "product of divided and whole": lambda: torch.matmul(columns, whole),
    }.items():
        try:
            print(f"{what}: {attempt().placements}")
        except Exception as error:
            print(f"{what}: {type(error).__name__}: {str(error).splitlines()[0]}")
    dist.destroy_process_group()

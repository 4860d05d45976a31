"""A tensor cannot go to another mesh, and a rank outside a mesh cannot name its tensors; the errors do not say so."""

import torch
import torch.distributed as dist
from hyper_parallel import init_device_mesh
from hyper_parallel.core.dtensor import distribute_tensor
from hyper_parallel.core.placement_types import Replicate, Shard
from torch.testing._internal.distributed.fake_pg import FakeStore

if __name__ == "__main__":
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=4)
    line = init_device_mesh("cpu", (4,), mesh_dim_names=("a",))
    square = init_device_mesh("cpu", (2, 2), mesh_dim_names=("b", "c"))
    upper = init_device_mesh("cpu", (2,), mesh_dim_names=("d",), rank_list=(2, 3))
    for what, attempt in {
        "another shape": lambda: distribute_tensor(torch.ones(4), line, [Shard(0)]).redistribute(
            square, [Shard(0), Replicate()]
        ),
        "a part": lambda: distribute_tensor(torch.ones(4), line, [Shard(0)]).redistribute(upper, [Shard(0)]),
        "from outside": lambda: distribute_tensor(torch.ones(4), upper, [Shard(0)]),
    }.items():
        try:
            print(f"{what}: {attempt().placements}")
        except Exception as error:
            print(f"{what}: {type(error).__name__}: {error}")
    dist.destroy_process_group()

"""Usual ways to call an operator are not understood; chunk gives plain tensors. Expected: DTensor each time."""

import torch
import torch.distributed as dist
from hyper_parallel import init_device_mesh
from hyper_parallel.core.dtensor import distribute_tensor
from hyper_parallel.core.placement_types import Replicate
from torch.testing._internal.distributed.fake_pg import FakeStore

if __name__ == "__main__":
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
    mesh = init_device_mesh("cpu", (2,), mesh_dim_names=("tp",))
    x = distribute_tensor(torch.ones(4, 4), mesh, [Replicate()])
    for what, attempt in {
        "view of separate sizes": lambda: x.view(4, 2, 2),
        "permute of separate dimensions": lambda: x.permute(1, 0),
        "squeeze of what is no one": lambda: x.squeeze(0),
        "linear without bias": lambda: torch.nn.functional.linear(x, x),
        "cat": lambda: torch.cat([x, x]),
        "chunk": lambda: x.chunk(2)[0],
    }.items():
        try:
            print(f"{what}: {type(attempt()).__name__}")
        except Exception as error:
            print(f"{what}: {type(error).__name__}: {error}")
    dist.destroy_process_group()

"""The gradient of a parameter lies as backward's last operation left it, and not as the parameter."""

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, Shard, distribute_tensor
from torch.testing._internal.distributed.fake_pg import FakeStore

if __name__ == "__main__":
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
    mesh = init_device_mesh("cpu", (2,))
    for batch, weight in [(Shard(0), Replicate()), (Replicate(), Shard(0))]:
        x = distribute_tensor(torch.ones(4, 8), mesh, [batch], src_data_rank=None)
        parameter = torch.nn.Parameter(distribute_tensor(torch.ones(8, 4), mesh, [weight], src_data_rank=None))
        (x @ parameter).sum().backward()
        print(f"parameter {parameter.placements}, batch {x.placements}: gradient {parameter.grad.placements}")
    dist.destroy_process_group()

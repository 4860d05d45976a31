"""A mesh whose groups are destroyed finds groups of the next world by their names, or fails without naming them."""

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor
from torch.testing._internal.distributed.fake_pg import FakeStore

if __name__ == "__main__":
    dist.init_process_group("fake", store=FakeStore(), rank=1, world_size=4)
    tensor = distribute_tensor(torch.ones(8), init_device_mesh("cpu", (4,)), [Shard(0)], src_data_rank=None)
    for size in (2, 4):
        dist.destroy_process_group()
        dist.init_process_group("fake", store=FakeStore(), rank=1, world_size=size)
        try:
            print(f"next world of {size}: accepted, {tensor.full_tensor().shape}")
        except Exception as error:
            print(f"next world of {size}: {type(error).__name__}: {error}")
    dist.destroy_process_group()

"""On the CPU Shard(0) to Shard(1) gathers the whole on every rank and cuts it, although gloo has all-to-all."""

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor
from torch.distributed.tensor.debug import CommDebugMode
from torch.testing._internal.distributed.fake_pg import FakeStore

if __name__ == "__main__":
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=4)
    mesh = init_device_mesh("cpu", (4,))
    tensor = distribute_tensor(torch.ones(8, 8), mesh, [Shard(0)], src_data_rank=None)
    with CommDebugMode() as sent:
        tensor.redistribute(mesh, [Shard(1)])
    print(f"expected one all_to_all, got {dict(sent.get_comm_counts())}")
    dist.destroy_process_group()

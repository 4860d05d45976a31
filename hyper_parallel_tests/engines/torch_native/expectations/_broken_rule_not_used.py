"""register_sharding has no effect on relu, to which PyTorch gives a rule per mesh dimension; on tril it has."""

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, Shard, distribute_tensor
from torch.distributed.tensor.experimental import register_sharding
from torch.testing._internal.distributed.fake_pg import FakeStore

if __name__ == "__main__":
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
    mesh = init_device_mesh("cpu", (2,))

    @register_sharding([torch.ops.aten.relu.default, torch.ops.aten.tril.default])
    def whole(x, *others):
        return [([Replicate()], [Replicate(), *[None] * len(others)])]

    tensor = distribute_tensor(torch.ones(4, 4), mesh, [Shard(0)], src_data_rank=None)
    for function in (torch.tril, torch.relu):
        print(f"{function.__name__}: expected (Replicate(),), got {function(tensor).placements}")
    dist.destroy_process_group()

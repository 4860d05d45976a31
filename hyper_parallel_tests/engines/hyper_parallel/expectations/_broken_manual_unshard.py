"""unshard and reshard do nothing, and unshard(async_op=True) gives no handle."""

import torch.distributed as dist
from _any_revision import fully_shard, init_device_mesh
from torch import nn
from torch.testing._internal.distributed.fake_pg import FakeStore

if __name__ == "__main__":
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
    mesh = init_device_mesh("cpu", (2,), mesh_dim_names=("dp",))
    layer = fully_shard(nn.Linear(4, 4), mesh=mesh)
    layer.unshard()
    print(f"expected (4, 4) after unshard, got {tuple(layer.weight.to_local().shape)}")
    print(f"expected a handle, got {layer.unshard(async_op=True)}")

"""forward() on shards fails with a print-out of layouts, which does not say what is wrong."""

import torch
import torch.distributed as dist
from _any_revision import fully_shard, init_device_mesh
from torch import nn
from torch.testing._internal.distributed.fake_pg import FakeStore

if __name__ == "__main__":
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
    layer = fully_shard(nn.Linear(4, 4), mesh=init_device_mesh("cpu", (2,), mesh_dim_names=("dp",)))
    try:
        layer.forward(torch.ones(2, 4))
    except Exception as error:
        print(f"expected an error about the sharded DTensor, got {type(error).__name__}: {error}")

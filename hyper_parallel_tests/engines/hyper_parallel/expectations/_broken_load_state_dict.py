"""load_state_dict fails on sharded parameters, even with the module's own state dict."""

import torch.distributed as dist
from _any_revision import fully_shard, init_device_mesh
from torch import nn
from torch.testing._internal.distributed.fake_pg import FakeStore

if __name__ == "__main__":
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
    mesh = init_device_mesh("cpu", (2,), mesh_dim_names=("dp",))
    layer = fully_shard(nn.Linear(4, 4), mesh=mesh)
    try:
        layer.load_state_dict(layer.state_dict())
    except RuntimeError as error:
        print(f"expected nothing, got {type(error).__name__}: {str(error).splitlines()[-1].strip()}")

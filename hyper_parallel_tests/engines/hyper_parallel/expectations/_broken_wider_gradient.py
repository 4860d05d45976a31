"""Backward fails where the parameter is stored lower than its gradient is reduced."""

import torch
import torch.distributed as dist
from _any_revision import fully_shard, init_device_mesh
from hyper_parallel.platform.torch.fully_shard.utils import MixedPrecisionPolicy
from torch import nn
from torch.testing._internal.distributed.fake_pg import FakeStore

if __name__ == "__main__":
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
    mesh = init_device_mesh("cpu", (2,), mesh_dim_names=("dp",))
    policy = MixedPrecisionPolicy(reduce_dtype=torch.float32)
    layer = fully_shard(nn.Linear(4, 4).to(torch.bfloat16), mesh=mesh, mp_policy=policy)
    try:
        layer(torch.ones(1, 4, dtype=torch.bfloat16)).sum().backward()
        print(f"as expected, a gradient in {layer.bias.grad.dtype}")
    except RuntimeError as error:
        print(f"expected a gradient in bfloat16, got {error}")

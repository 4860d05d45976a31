"""Inputs are not cast to a policy's param_dtype; in the first version of fully_shard nothing is."""

import torch
import torch.distributed as dist
from hyper_parallel import init_device_mesh
from hyper_parallel.core.fully_shard.api import fully_shard
from hyper_parallel.platform.torch.fully_shard.utils import MixedPrecisionPolicy, OffloadPolicy
from torch import nn
from torch.testing._internal.distributed.fake_pg import FakeStore

if __name__ == "__main__":
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
    try:
        mesh = init_device_mesh("cpu", (2,), mesh_dim_names=("dp",))
    except TypeError:
        mesh = init_device_mesh((2,), ("dp",))
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16)
    layer = fully_shard(nn.Linear(4, 4), mesh=mesh, mp_policy=policy, offload_policy=OffloadPolicy())
    try:
        print(f"expected torch.bfloat16, got {layer(torch.ones(1, 4)).dtype}")
    except RuntimeError as error:
        print(f"expected torch.bfloat16, got {type(error).__name__}: {error}")

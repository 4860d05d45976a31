"""Neither inputs nor outputs are cast to the dtypes of a policy; in the first version of fully_shard nothing is."""

import torch
import torch.distributed as dist
from _any_revision import fully_shard, init_device_mesh
from hyper_parallel.platform.torch.fully_shard.utils import MixedPrecisionPolicy
from torch import nn
from torch.testing._internal.distributed.fake_pg import FakeStore

if __name__ == "__main__":
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
    mesh = init_device_mesh("cpu", (2,), mesh_dim_names=("dp",))
    for field in ("param_dtype", "output_dtype"):
        policy = MixedPrecisionPolicy(**{field: torch.bfloat16})
        layer = fully_shard(nn.Linear(4, 4), mesh=mesh, mp_policy=policy)
        try:
            print(f"{field}: expected an output of torch.bfloat16, got {layer(torch.ones(1, 4)).dtype}")
        except RuntimeError as error:
            print(f"{field}: expected an output of torch.bfloat16, got {type(error).__name__}: {error}")

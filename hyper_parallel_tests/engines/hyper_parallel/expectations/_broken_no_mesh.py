"""fully_shard without a mesh, or with one of the default process group, fails for want of it."""

import torch.distributed as dist
from _any_revision import fully_shard
from hyper_parallel import DeviceMesh
from torch import nn
from torch.testing._internal.distributed.fake_pg import FakeStore

if __name__ == "__main__":
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
    for what, make in (
        ("no mesh", lambda: None),
        ("a mesh of the world", lambda: DeviceMesh.from_group(dist.group.WORLD, "cpu", mesh_dim_names=("dp",))),
    ):
        try:
            layer = fully_shard(nn.Linear(4, 4), mesh=make())
            print(f"{what}: as expected, {tuple(layer.weight.shape)}")
        except Exception as error:
            print(f"{what}: expected (4, 4) in two parts, got {type(error).__name__}: {error}")

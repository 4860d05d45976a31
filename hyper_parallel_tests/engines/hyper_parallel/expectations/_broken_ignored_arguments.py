"""fully_shard takes ignored_params and shard_placement_fn, and does nothing with them."""

import torch.distributed as dist
from _any_revision import fully_shard, init_device_mesh
from hyper_parallel.core.placement_types import Shard
from torch import nn
from torch.testing._internal.distributed.fake_pg import FakeStore

if __name__ == "__main__":
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
    mesh = init_device_mesh("cpu", (2,), mesh_dim_names=("dp",))
    layer = nn.Linear(4, 4)
    weight = layer.weight
    fully_shard(layer, mesh=mesh, ignored_params={weight})
    print(f"ignored: expected the parameter itself, got {type(layer.weight).__name__} of {layer.weight.local_shape}")
    placed = fully_shard(nn.Linear(4, 4), mesh=mesh, shard_placement_fn=lambda one: Shard(one.ndim - 1))
    print(f"placed: expected (4, 2) on this rank, got {tuple(placed.weight.local_shape)}")
    fully_shard(nn.Linear(4, 4), mesh=mesh, shard_placement_fn=lambda _: Shard(7))
    print("placed on a dimension that is not there: expected an error, got none")

"""In a world of one rank backward fails when parameters are resharded after forward."""

import torch
import torch.distributed as dist
from _any_revision import fully_shard, init_device_mesh
from torch import nn

if __name__ == "__main__":
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    layers = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    mesh = init_device_mesh("cpu", (1,), mesh_dim_names=("dp",))
    for layer in layers:
        fully_shard(layer, mesh=mesh, reshard_after_forward=True)
    try:
        layers(torch.ones(2, 4)).sum().backward()
        print(f"expected a gradient, got {layers[0].weight.grad}")
    except RuntimeError as error:
        print(f"expected a gradient, got {error}")

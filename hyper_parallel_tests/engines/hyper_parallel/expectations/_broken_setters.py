"""Three setters end in a NameError, and gradients are reduced although synchronization is switched off."""

import torch
import torch.distributed as dist
from _any_revision import fully_shard, init_device_mesh
from torch import nn
from torch.testing._internal.distributed.fake_pg import FakeStore

if __name__ == "__main__":
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
    mesh = init_device_mesh("cpu", (2,), mesh_dim_names=("dp",))
    layer = fully_shard(nn.Linear(4, 4), mesh=mesh)
    for name in ("set_reshard_after_forward", "set_reshard_after_backward", "set_requires_all_reduce"):
        try:
            getattr(layer, name)(False)
        except NameError as error:
            print(f"{name}: expected nothing, got {type(error).__name__}: {error}")
    layer.set_requires_gradient_sync(False)
    layer(torch.ones(1, 4)).sum().backward()
    print(f"expected the whole gradient of this rank, 4 elements, got {layer.bias.grad.numel()}")

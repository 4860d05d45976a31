"""A plain tensor among distributed ones is taken for the rank's part, or fails about sizes; so do two meshes."""

import torch
import torch.distributed as dist
from hyper_parallel import init_device_mesh
from hyper_parallel.core.dtensor import distribute_tensor
from hyper_parallel.core.placement_types import Replicate, Shard
from torch.testing._internal.distributed.fake_pg import FakeStore

if __name__ == "__main__":
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
    mesh = init_device_mesh("cpu", (2,), mesh_dim_names=("tp",))
    other = distribute_tensor(
        torch.ones(4, 4), init_device_mesh("cpu", (1, 2), mesh_dim_names=("a", "b")), [Replicate(), Replicate()]
    )
    tensor = distribute_tensor(torch.ones(4, 4), mesh, [Shard(0)])
    for what, plain in [
        ("of full size", torch.ones(4, 4)),
        ("of the part's size", torch.ones(2, 4)),
        ("of another mesh", other),
    ]:
        try:
            print(f"a tensor {what}: accepted, {(tensor + plain).placements}")
        except Exception as error:
            print(f"a tensor {what}: {type(error).__name__}: {error}")
    dist.destroy_process_group()

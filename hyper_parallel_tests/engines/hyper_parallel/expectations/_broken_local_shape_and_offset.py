"""compute_local_shape_and_global_offset gives no offset, against its name and documentation."""

import torch.distributed as dist
from hyper_parallel import init_device_mesh
from hyper_parallel.core.placement_types import Shard
from hyper_parallel.core.utils import compute_local_shape_and_global_offset
from torch.testing._internal.distributed.fake_pg import FakeStore

if __name__ == "__main__":
    dist.init_process_group("fake", store=FakeStore(), rank=1, world_size=2)
    mesh = init_device_mesh("cpu", (2,), mesh_dim_names=("tp",))
    found = compute_local_shape_and_global_offset((4, 6), mesh, [Shard(0)])
    print(f"expected ((2, 6), (2, 0)), got {found}")
    dist.destroy_process_group()

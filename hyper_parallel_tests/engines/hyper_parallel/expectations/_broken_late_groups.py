"""A mesh with a rank that the world lacks is accepted: its groups are made on first use, and only then refused."""

import torch.distributed as dist
from hyper_parallel import init_device_mesh
from torch.testing._internal.distributed.fake_pg import FakeStore

if __name__ == "__main__":
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=4)
    mesh = init_device_mesh((2, 2), ("dp", "tp"), (0, 1, 2, 9))
    print(f"expected an error that names rank 9, got a mesh of ranks {mesh.rank_list}")

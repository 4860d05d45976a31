"""init_device_mesh takes a rank list with rank 2 in two places."""

import torch.distributed as dist
from _any_revision import init_device_mesh
from torch.testing._internal.distributed.fake_pg import FakeStore

if __name__ == "__main__":
    for rank in range(4):
        dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=4)
        try:
            mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"), rank_list=(0, 2, 2, 3))
            print(f"rank {rank}: accepted {mesh}")
        except Exception as error:
            print(f"rank {rank}: {type(error).__name__}: {error}")
        dist.destroy_process_group()

"""DeviceMesh with rank 2 in two rows: an error on rank 2 only, so that the others wait for it."""

import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh
from torch.testing._internal.distributed.fake_pg import FakeStore

if __name__ == "__main__":
    for rank in range(4):
        dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=4)
        try:
            print(f"rank {rank}: accepted {DeviceMesh('cpu', [[0, 2], [2, 3]]).mesh.tolist()}")
        except Exception as error:
            print(f"rank {rank}: {type(error).__name__}: {error}")
        dist.destroy_process_group()

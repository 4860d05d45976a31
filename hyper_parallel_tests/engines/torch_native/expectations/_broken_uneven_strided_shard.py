"""7 rows over a mesh (3, 2), divided by the second dimension first: row 6 of its second half is in the first half."""

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor
from torch.distributed.tensor.placement_types import _StridedShard
from torch.testing._internal.distributed.fake_pg import FakeStore

if __name__ == "__main__":
    for half in (0, 1):
        for third in (0, 1, 2):
            dist.init_process_group("fake", store=FakeStore(), rank=2 * third + half, world_size=6)
            mesh = init_device_mesh("cpu", (3, 2))
            rows = torch.arange(7)
            placements = [_StridedShard(0, split_factor=2), Shard(0)]
            found = distribute_tensor(rows, mesh, placements, src_data_rank=None).to_local().tolist()
            parts = [part.tolist() for part in rows.chunk(2)[half].chunk(3)] + [[]]
            print(f"half {half}, third {third}: expected {parts[third]}, got {found}")
            dist.destroy_process_group()

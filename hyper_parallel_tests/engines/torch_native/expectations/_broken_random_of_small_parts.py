"""Parts of fewer than four elements begin at one offset of the random stream, so ranks draw the same numbers."""

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, _random
from torch.distributed.tensor._dtensor_spec import DTensorSpec, TensorMeta
from torch.testing._internal.distributed.fake_pg import FakeStore

starts = []
for rank in range(4):
    dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=4)
    meta = TensorMeta(torch.Size([4]), (1,), torch.float32)
    spec = DTensorSpec(init_device_mesh("cpu", (4,)), (Shard(0),), meta)
    tracker = object.__new__(_random.OffsetBasedRNGTracker)
    starts.append(tracker._compute_rng_offsets(spec)[0])
    dist.destroy_process_group()

print(f"four ranks with one element each begin at {starts}")
assert len(set(starts)) == 4

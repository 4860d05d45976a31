"""A dimension divided by two mesh dimensions: ranks begin behind the end of the tensor, where the next one begins."""

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, _random
from torch.distributed.tensor._dtensor_spec import DTensorSpec, TensorMeta
from torch.testing._internal.distributed.fake_pg import FakeStore

offsets = []
for rank in range(4):
    dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=4)
    meta = TensorMeta(torch.Size([16]), (1,), torch.float32)
    spec = DTensorSpec(init_device_mesh("cpu", (2, 2)), (Shard(0), Shard(0)), meta)
    tracker = object.__new__(_random.OffsetBasedRNGTracker)
    offsets.append(tracker._compute_rng_offsets(spec))
    dist.destroy_process_group()

print(f"begin and end of four parts of 16 elements: {offsets}")
assert all(start < end for start, end in offsets)

"""The tracker of random states takes the shape of the mesh for that of the tensor: ranks and tensors draw the same."""

from types import SimpleNamespace

import torch.distributed as dist
from hyper_parallel import init_device_mesh
from hyper_parallel.core.placement_types import Shard
from hyper_parallel.core.random import OffsetBasedRNGTracker
from torch.testing._internal.distributed.fake_pg import FakeStore

SHAPE = (64, 64)
offsets = []
for rank in range(4):
    dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=4)
    mesh = init_device_mesh("cpu", (4,), mesh_dim_names=("dp",))
    state = SimpleNamespace(offset=0)
    tracker = object.__new__(OffsetBasedRNGTracker)
    tracker._set_pre_op_offset(state, mesh, (Shard(0),), SHAPE)
    begin = state.offset
    tracker._set_post_op_offset(state, mesh, 0)
    offsets.append((begin, state.offset))
    dist.destroy_process_group()

print(f"begin and end of four parts of 4096 elements: {offsets}")
assert offsets == [(rank * 1024, 4096) for rank in range(4)]

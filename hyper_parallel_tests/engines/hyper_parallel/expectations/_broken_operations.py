"""Operations that every training program needs are unknown to distributed tensors, or take a copy for the tensor."""

import copy
import io

import torch
import torch.distributed as dist
from hyper_parallel import init_device_mesh
from hyper_parallel.core.dtensor import distribute_tensor
from hyper_parallel.core.placement_types import Shard
from torch.testing._internal.distributed.fake_pg import FakeStore

if __name__ == "__main__":
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
    tensor = distribute_tensor(torch.ones(4, 4), init_device_mesh("cpu", (2,), mesh_dim_names=("tp",)), [Shard(0)])
    for what, attempt in {
        "deepcopy": lambda: copy.deepcopy(tensor),
        "torch.save": lambda: torch.save(tensor, io.BytesIO()),
        **{name: lambda name=name: getattr(tensor, name)(tensor) for name in ("mul_", "copy_", "add_")},
        **{
            name: lambda name=name: getattr(tensor, name)(*[1] * (name == "fill_"))
            for name in ("zero_", "fill_", "sqrt")
        },
    }.items():
        try:
            print(f"{what}: accepted, gives the tensor itself: {attempt() is tensor}")
        except Exception as error:
            print(f"{what}: {type(error).__name__}: {error}")
    dist.destroy_process_group()

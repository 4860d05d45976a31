"""On a mesh [1, 0] rank 1 holds the first part, but the whole is put together in the order of ranks."""

import tempfile

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import Shard, distribute_tensor
from torch.multiprocessing import spawn


def run(rank: int, path: str) -> None:
    dist.init_process_group("gloo", init_method=f"file://{path}", rank=rank, world_size=2)
    mesh = DeviceMesh("cpu", [1, 0])
    tensor = distribute_tensor(torch.arange(4), mesh, [Shard(0)], src_data_rank=None)
    found = tensor.full_tensor().tolist()
    print(f"rank {rank} holds {tensor.to_local().tolist()}: expected [0, 1, 2, 3], got {found}")
    dist.destroy_process_group()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        spawn(run, (f"{folder}/store",), nprocs=2)

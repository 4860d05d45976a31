"""all_reduce(MAX) on gloo drops a NaN unless the first rank has it. Expected: NaN on both ranks each time."""

import tempfile

import torch
import torch.distributed as dist
from torch.multiprocessing import spawn


def run(rank: int, path: str) -> None:
    dist.init_process_group("gloo", init_method=f"file://{path}", rank=rank, world_size=2)
    for guilty in (0, 1):
        tensor = torch.tensor(float("nan") if rank == guilty else 1.0)
        dist.all_reduce(tensor, dist.ReduceOp.MAX)
        print(f"rank {rank}: NaN on rank {guilty} alone, maximum {tensor.item()}")
    dist.destroy_process_group()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        spawn(run, (f"{folder}/store",), nprocs=2)

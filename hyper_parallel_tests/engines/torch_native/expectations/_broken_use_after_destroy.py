"""A gloo group still reduces after destroy_process_group() has ended it."""

import tempfile

import torch
import torch.distributed as dist
from torch.multiprocessing import spawn


def run(rank: int, path: str) -> None:
    dist.init_process_group("gloo", init_method=f"file://{path}", rank=rank, world_size=2)
    kept = dist.new_group([0, 1])
    dist.destroy_process_group()
    tensor = torch.ones(1)
    dist.all_reduce(tensor, group=kept)
    print(f"rank {rank}: expected an error, got {tensor.item()}")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        spawn(run, (f"{folder}/store",), nprocs=2)

"""split_group knows no parent but the world, and lets a rank be in two parts."""

import tempfile

import torch.distributed as dist
from hyper_parallel import get_process_group_ranks, split_group
from torch.multiprocessing import spawn


def run(rank: int, path: str) -> None:
    dist.init_process_group("gloo", init_method=f"file://{path}", rank=rank, world_size=2)
    group = split_group(split_ranks=[[0], [1]])
    inner = split_group(group, [[0]])
    print(f"rank {rank}: expected [{rank}], got {get_process_group_ranks(inner) if inner else None}")
    overlapping = split_group(split_ranks=[[0, 1], [1]])
    print(f"rank {rank}: expected an error, got {get_process_group_ranks(overlapping)}")
    dist.destroy_process_group()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        spawn(run, (f"{folder}/store",), nprocs=2)

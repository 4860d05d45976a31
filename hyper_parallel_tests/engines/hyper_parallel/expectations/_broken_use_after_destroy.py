"""A group that is kept over destroy_process_group goes on working, as if it had not been destroyed."""

import tempfile

import torch
import torch.distributed as dist
from hyper_parallel import destroy_process_group, get_platform, split_group
from hyper_parallel.core.fully_shard.hsdp_utils import GroupInfo
from torch.multiprocessing import spawn


def run(rank: int, path: str) -> None:
    dist.init_process_group("gloo", init_method=f"file://{path}", rank=rank, world_size=2)
    group = split_group(split_ranks=[[0, 1]])
    destroy_process_group()
    total, _ = get_platform().all_reduce(torch.ones(1), GroupInfo("kept", group, 2))
    print(f"rank {rank}: expected an error, got {total.tolist()}")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        spawn(run, (f"{folder}/store",), nprocs=2)

"""broadcast on gloo takes a strided tensor for a dense one: wrong values, and memory beside the view changes."""

import tempfile

import torch
import torch.distributed as dist
from hyper_parallel import get_platform
from torch.multiprocessing import spawn


def run(rank: int, path: str) -> None:
    dist.init_process_group("gloo", init_method=f"file://{path}", rank=rank, world_size=2)
    whole = torch.arange(1.0, 7) * (rank + 1)
    get_platform().broadcast(whole[::2], 0, None)
    between = [2 * one for one in (rank + 1, 2 * rank + 2, 3 * rank + 3)]
    print(f"rank {rank}: expected [1, 3, 5] and between {between}, got {whole[::2].tolist()}, {whole[1::2].tolist()}")
    dist.destroy_process_group()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        spawn(run, (f"{folder}/store",), nprocs=2)

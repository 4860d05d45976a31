"""Collectives of gloo on every second element of 1..6 (rank 0) and its double (rank 1): all_reduce must give
3 9 15,
reduce_scatter 2 6 10, the others 1 3 5; what is between must stay 2 4 6 on rank 0 and 4 8 12 on rank 1."""

import tempfile

import torch
import torch.distributed as dist
from torch.multiprocessing import spawn


def run(rank: int, path: str) -> None:
    dist.init_process_group("gloo", init_method=f"file://{path}", rank=rank, world_size=2)
    parts = [torch.tensor([1.0, 3, 5])] * 2
    for name, call in {
        "all_reduce": lambda view: dist.all_reduce(view),
        "broadcast": lambda view: dist.broadcast(view, 0),
        "scatter": lambda view: dist.scatter(view, parts if rank == 0 else None, 0),
        "reduce_scatter": lambda view: dist.reduce_scatter(view, parts),
    }.items():
        whole = torch.arange(1.0, 7) * (rank + 1)
        call(whole[::2])
        print(f"{name} on rank {rank}: {whole[::2].tolist()}, between {whole[1::2].tolist()}")
    dist.destroy_process_group()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        spawn(run, (f"{folder}/store",), nprocs=2)

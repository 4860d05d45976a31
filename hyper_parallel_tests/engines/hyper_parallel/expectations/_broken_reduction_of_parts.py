"""Reductions of a divided row: parts have gradients and indices of their own. Expected: [0, 1], [2, 1], index 1."""

import tempfile

import torch
import torch.distributed as dist
from hyper_parallel import init_device_mesh
from hyper_parallel.core.dtensor import distribute_tensor
from hyper_parallel.core.placement_types import Shard
from torch.multiprocessing import spawn


def run(rank: int, path: str) -> None:
    dist.init_process_group("gloo", init_method=f"file://{path}", rank=rank, world_size=2)
    mesh = init_device_mesh("cpu", (2,), mesh_dim_names=("tp",))
    for name in ("max", "prod"):
        row = distribute_tensor(torch.tensor([1.0, 2.0]), mesh, [Shard(0)]).requires_grad_()
        result = getattr(row, name)()
        result.to_local().backward(torch.ones(()))
        print(f"rank {rank}, {name}: {result.full_tensor().item()}, gradient of its part {row.grad.tolist()}")
    print(f"rank {rank}: index {row.max(0)[1].to_local().item()}")
    dist.destroy_process_group()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        spawn(run, (f"{folder}/store",), nprocs=2)

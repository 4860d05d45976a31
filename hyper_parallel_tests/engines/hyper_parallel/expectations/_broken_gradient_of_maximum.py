"""Backward through a maximum over ranks takes the maximum of the gradients, where every other reduction sums them."""

import tempfile

import torch
import torch.distributed as dist
from hyper_parallel import DTensor, init_device_mesh
from hyper_parallel.core.placement_types import Partial, Replicate
from torch.multiprocessing import spawn


def run(rank: int, path: str) -> None:
    dist.init_process_group("gloo", init_method=f"file://{path}", rank=rank, world_size=2)
    mesh = init_device_mesh("cpu", (2,), mesh_dim_names=("tp",))
    for op in ("sum", "max"):
        local = torch.full((2,), float(rank), requires_grad=True)
        total = DTensor.from_local(local, mesh, [Partial(op)]).redistribute(mesh, [Replicate()])
        total.to_local().backward(torch.full((2,), 0.5))
        print(f"rank {rank}, {op}: gradient {local.grad.tolist()} of shares of 0.5")
    dist.destroy_process_group()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        spawn(run, (f"{folder}/store",), nprocs=2)

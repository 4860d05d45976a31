"""The largest magnitude of a maximum over ranks is taken of the parts. Expected: 1.0."""

import tempfile

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Partial
from torch.multiprocessing import spawn


def run(rank: int, path: str) -> None:
    dist.init_process_group("gloo", init_method=f"file://{path}", rank=rank, world_size=2)
    mesh = init_device_mesh("cpu", (2,))
    x = DTensor.from_local(torch.tensor([-1.0 - rank]), mesh, [Partial("max")])
    norm = torch.linalg.vector_norm(x, float("inf")).full_tensor()
    if rank == 0:
        print(norm.item())
    dist.destroy_process_group()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        spawn(run, (f"{folder}/store",), nprocs=2)

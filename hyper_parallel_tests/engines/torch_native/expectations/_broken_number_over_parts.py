"""In gradients a number minus, or over, a tensor of parts passes for linear. Expected: -1.0 and 0.5, of 2."""

import tempfile

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Partial, Replicate, distribute_tensor
from torch.multiprocessing import spawn


def run(rank: int, path: str) -> None:
    dist.init_process_group("gloo", init_method=f"file://{path}", rank=rank, world_size=2)
    mesh = init_device_mesh("cpu", (2,))
    one = distribute_tensor(torch.ones(6), mesh, [Replicate()])
    two = DTensor.from_local(torch.ones(6), mesh, [Partial()]).requires_grad_()
    found = []
    for combine, position in ((torch.lerp, 0), (torch.addcdiv, 1)):
        inputs = [one.clone().requires_grad_(), one.clone().requires_grad_()]
        (gradient,) = torch.autograd.grad(combine(*inputs, two), inputs[position], one)
        found.append(gradient.full_tensor()[0].item())
    print(rank, found)
    dist.destroy_process_group()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        spawn(run, (f"{folder}/store",), nprocs=2)

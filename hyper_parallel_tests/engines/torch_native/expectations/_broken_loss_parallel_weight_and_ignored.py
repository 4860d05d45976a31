"""Loss parallel with weights: backward looks ignored targets up, -100 is out of bounds. Expected: a gradient."""

import tempfile

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor
from torch.distributed.tensor.parallel import loss_parallel
from torch.multiprocessing import spawn


def run(rank: int, path: str) -> None:
    dist.init_process_group("gloo", init_method=f"file://{path}", rank=rank, world_size=2)
    mesh = init_device_mesh("cpu", (2,))
    logits = distribute_tensor(torch.zeros(2, 4), mesh, [Shard(1)]).requires_grad_()
    with loss_parallel():
        F.cross_entropy(logits, torch.tensor([1, -100]), weight=torch.ones(4)).backward()
    print(logits.grad.full_tensor())
    dist.destroy_process_group()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        spawn(run, (f"{folder}/store",), nprocs=2)

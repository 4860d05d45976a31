"""Loss parallel refuses label_smoothing: mixed torch.Tensor and DTensor. Expected: 1.386 (log 4)."""

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
        print(F.cross_entropy(logits, torch.tensor([1, 3]), label_smoothing=0.1).item())
    dist.destroy_process_group()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        spawn(run, (f"{folder}/store",), nprocs=2)

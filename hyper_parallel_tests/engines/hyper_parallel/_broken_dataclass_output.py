"""Backward through an output in an object, such as a dataclass, gathers, reduces and reshards nothing."""

import tempfile
from types import SimpleNamespace

import torch
import torch.distributed as dist
from hyper_parallel import init_device_mesh
from hyper_parallel.core.fully_shard.api import fully_shard
from torch import nn
from torch.multiprocessing import spawn


class Layer(nn.Linear):
    def forward(self, inputs: torch.Tensor) -> SimpleNamespace:
        return SimpleNamespace(value=super().forward(inputs))


def run(rank: int, path: str) -> None:
    dist.init_process_group("gloo", init_method=f"file://{path}", rank=rank, world_size=2)
    layer = fully_shard(Layer(4, 4), mesh=init_device_mesh("cpu", (2,), mesh_dim_names=("dp",)))
    layer(torch.full((1, 4), rank + 1.0)).value.sum().backward()
    print(f"expected the mean over ranks, two rows of 1.5, got {layer.weight.grad}")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        spawn(run, (f"{folder}/store",), nprocs=2)

"""An optimizer's own state cannot be loaded again, unless under SkipDTensorDispatch."""

import tempfile

import torch
import torch.distributed as dist
from _any_revision import fully_shard, init_device_mesh
from hyper_parallel import SkipDTensorDispatch
from torch import nn
from torch.multiprocessing import spawn


def run(rank: int, path: str) -> None:
    dist.init_process_group("gloo", init_method=f"file://{path}", rank=rank, world_size=2)
    layer = fully_shard(nn.Linear(4, 4), mesh=init_device_mesh("cpu", (2,), mesh_dim_names=("dp",)))
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1, momentum=0.9)
    layer(torch.ones(1, 4)).sum().backward()
    with SkipDTensorDispatch():
        optimizer.step()
    try:
        optimizer.load_state_dict(optimizer.state_dict())
    except Exception as error:
        print(f"expected to load what the optimizer gave, got {error}")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        spawn(run, (f"{folder}/store",), nprocs=2)

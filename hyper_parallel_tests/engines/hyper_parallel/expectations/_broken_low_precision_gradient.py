"""A gradient that waits takes the dtype of whatever is wrapped next, and a root without parameters has none."""

import tempfile

import torch
import torch.distributed as dist
from _any_revision import fully_shard, init_device_mesh
from hyper_parallel.platform.torch.fully_shard.utils import MixedPrecisionPolicy
from torch import nn
from torch.multiprocessing import spawn


def run(rank: int, path: str) -> None:
    dist.init_process_group("gloo", init_method=f"file://{path}", rank=rank, world_size=2)
    mesh = init_device_mesh("cpu", (2,), mesh_dim_names=("dp",))
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    for module in (*model, model):
        fully_shard(module, mesh=mesh, mp_policy=MixedPrecisionPolicy(param_dtype=torch.bfloat16))
    try:
        model(torch.ones(1, 4)).sum().backward()
        print(f"expected a gradient, got {model[1].weight.grad}")
    except RuntimeError as error:
        print(f"expected a gradient, got {error}")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        spawn(run, (f"{folder}/store",), nprocs=2)

"""set_reduce_op_type("sum") reaches the parameters of the module itself, and not those of wrapped children."""

import tempfile

import torch
import torch.distributed as dist
from _any_revision import fully_shard, init_device_mesh
from torch import nn
from torch.multiprocessing import spawn


def run(rank: int, path: str) -> None:
    dist.init_process_group("gloo", init_method=f"file://{path}", rank=rank, world_size=2)
    mesh = init_device_mesh("cpu", (2,), mesh_dim_names=("dp",))
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    for module in (model[0], model):
        fully_shard(module, mesh=mesh)
    model.set_reduce_op_type("sum")
    model(torch.ones(2, 4)).sum().backward()
    ops = [one.hsdp_scheduler.hsdp_state.reduce_op_type for one in (model[0], model)]
    print(f"rank {rank}: expected SUM twice, got {ops}")
    dist.destroy_process_group()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        spawn(run, (f"{folder}/store",), nprocs=2)

"""Loading a distributed tensor of another shape fails without the name of the parameter."""

import tempfile

import torch.distributed as dist
from _any_revision import fully_shard, init_device_mesh
from torch import nn
from torch.multiprocessing import spawn


def run(rank: int, path: str) -> None:
    dist.init_process_group("gloo", init_method=f"file://{path}", rank=rank, world_size=2)
    mesh = init_device_mesh("cpu", (2,), mesh_dim_names=("dp",))
    layer, other = fully_shard(nn.Linear(4, 4), mesh=mesh), fully_shard(nn.Linear(6, 4), mesh=mesh)
    try:
        layer.load_state_dict(other.state_dict())
    except Exception as error:
        print(f"rank {rank}: expected an error about 'weight', got {error}")
    dist.destroy_process_group()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        spawn(run, (f"{folder}/store",), nprocs=2)

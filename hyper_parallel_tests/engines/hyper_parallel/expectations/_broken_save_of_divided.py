"""A divided tensor cannot be saved by two ranks: the plans that they exchange hold the tensor, which cannot be pickled."""

import tempfile

import torch
import torch.distributed as dist
from _any_revision import init_device_mesh
from hyper_parallel import DTensor, Shard
from hyper_parallel.core.checkpoint import save
from torch.multiprocessing import spawn


def run(rank: int, folder: str) -> None:
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2)
    mesh = init_device_mesh("cpu", (2,), mesh_dim_names=("dp",))
    try:
        save({"weight": DTensor.from_local(torch.ones(2), mesh, [Shard(0)])}, checkpoint_id=f"{folder}/checkpoint")
        print(f"rank {rank}: saved")
    except RuntimeError as error:
        print(f"rank {rank}: expected a checkpoint, got {error}")
    dist.destroy_process_group()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        spawn(run, (folder,), nprocs=2)

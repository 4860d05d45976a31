"""A dict within the state dict is one object: its tensor is not filled in place, and one rank's dict is kept."""

import tempfile

import torch
import torch.distributed as dist
from hyper_parallel.core.checkpoint import load, save
from torch.multiprocessing import spawn


def run(rank: int, folder: str) -> None:
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2)
    metadata = save({"inner": {f"rank {rank}": torch.ones(2)}}, checkpoint_id=f"{folder}/checkpoint")
    dist.barrier()
    state = {"inner": {f"rank {rank}": torch.zeros(2)}}
    room = state["inner"][f"rank {rank}"]
    load(state, checkpoint_id=f"{folder}/checkpoint")
    keys = list(metadata.state_dict_metadata)
    print(f"rank {rank}: expected keys of both ranks and ones, got {keys}, {room} and {state}")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        spawn(run, (folder,), nprocs=2)

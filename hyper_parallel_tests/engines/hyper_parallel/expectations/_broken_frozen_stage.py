"""A frozen first stage ends the run. Expected: a gradient on rank 1 alone, got a RuntimeError on rank 0."""

import tempfile

import torch
import torch.distributed as dist
from hyper_parallel.core.pipeline_parallel import PipelineStage, Schedule1F1B
from torch import nn
from torch.multiprocessing import spawn


def run(rank: int, path: str) -> None:
    dist.init_process_group("gloo", init_method=f"file://{path}", rank=rank, world_size=2)
    module = nn.Sequential(nn.Linear(2, 1), nn.Flatten(0)) if rank else nn.Linear(2, 2).requires_grad_(False)
    schedule = Schedule1F1B(PipelineStage(module, rank, 2, torch.device("cpu")), 2)
    try:
        schedule.run(*([] if rank else [torch.ones(2, 2)]))
    except RuntimeError as error:
        print(f"rank {rank}: RuntimeError: {error}", flush=True)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        spawn(run, (f"{folder}/store",), nprocs=2, join=False).join(20)

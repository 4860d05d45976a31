"""What goes wrong on one rank the others do not hear of: they wait, here until gloo's timeout, or end as if right."""

import tempfile
from datetime import timedelta

import torch
import torch.distributed as dist
from hyper_parallel.core.pipeline_parallel import PipelineStage, Schedule1F1B
from torch import nn
from torch.multiprocessing import spawn


def run(rank: int, path: str, width: int, numbers: tuple[int, int]) -> None:
    limit = timedelta(seconds=3)
    dist.init_process_group("gloo", init_method=f"file://{path}", rank=rank, world_size=2, timeout=limit)
    stage = PipelineStage(nn.Linear(width, 1) if rank else nn.Linear(2, 2), rank, 2, torch.device("cpu"))
    try:
        found = Schedule1F1B(stage, numbers[rank]).run(*([] if rank else [torch.ones(numbers[0], 2)]))
        print(f"rank {rank}: {len(found)} losses", flush=True)
    except RuntimeError as error:
        print(f"rank {rank}: {str(error).splitlines()[0]}", flush=True)
        dist.barrier() if rank else None


if __name__ == "__main__":
    for width, numbers in ((3, (2, 2)), (2, (4, 2))):
        with tempfile.TemporaryDirectory() as folder:
            spawn(run, (f"{folder}/store", width, numbers), nprocs=2, join=False).join(15)

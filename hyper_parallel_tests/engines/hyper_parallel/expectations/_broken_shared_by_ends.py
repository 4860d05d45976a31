"""A parameter that the ends of a pipeline of four share is refused. Expected: four schedules, got a KeyError on two."""

import tempfile

import torch
import torch.distributed as dist
from hyper_parallel.core.pipeline_parallel import PipelineStage, Schedule1F1B
from hyper_parallel.core.pipeline_parallel.stage import SharedParameterInfo
from torch import nn
from torch.multiprocessing import spawn


def run(rank: int, path: str) -> None:
    dist.init_process_group("gloo", init_method=f"file://{path}", rank=rank, world_size=4)
    module = nn.Linear(1, 1)
    shared = None if rank in (1, 2) else SharedParameterInfo(module.weight, [0, 3])
    stage = PipelineStage(module, rank, 4, torch.device("cpu"), dist.group.WORLD, shared_parameters=shared)
    try:
        Schedule1F1B(stage, 4)
        print(f"rank {rank}: a schedule", flush=True)
    except KeyError as error:
        print(f"rank {rank}: KeyError: {error}", flush=True)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        spawn(run, (f"{folder}/store",), nprocs=4, join=False).join(20)

"""A parameter that two stages of one rank share with others is refused. Expected: a schedule, got a ValueError."""

import tempfile

import torch
import torch.distributed as dist
from hyper_parallel.core.pipeline_parallel import PipelineStage, ScheduleInterleaved1F1B
from hyper_parallel.core.pipeline_parallel.stage import SharedParameterInfo
from torch import nn
from torch.multiprocessing import spawn


def run(rank: int, path: str) -> None:
    dist.init_process_group("gloo", init_method=f"file://{path}", rank=rank, world_size=2)
    stages = []
    for index in (rank, rank + 2):
        module = nn.Linear(1, 1)
        shared = SharedParameterInfo(module.weight, [3, 1, 0, 2])
        stages.append(PipelineStage(module, index, 4, torch.device("cpu"), dist.group.WORLD, shared_parameters=shared))
    try:
        ScheduleInterleaved1F1B(stages, 4)
    except ValueError as error:
        print(f"rank {rank}: ValueError: {error}", flush=True)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        spawn(run, (f"{folder}/store",), nprocs=2, join=False).join(20)

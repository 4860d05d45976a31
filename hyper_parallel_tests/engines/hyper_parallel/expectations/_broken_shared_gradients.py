"""Gradients of shared parameters cannot be summed. Expected: 4 on both ranks, got an AttributeError."""

import tempfile

import torch
import torch.distributed as dist
from hyper_parallel.core.pipeline_parallel import PipelineStage, Schedule1F1B
from hyper_parallel.core.pipeline_parallel.stage import SharedParameterInfo
from torch import nn
from torch.multiprocessing import spawn


def run(rank: int, path: str) -> None:
    dist.init_process_group("gloo", init_method=f"file://{path}", rank=rank, world_size=2)
    module = nn.Linear(1, 1, bias=False)
    nn.init.ones_(module.weight)
    shared = SharedParameterInfo(module.weight, [0, 1])
    stage = PipelineStage(module, rank, 2, torch.device("cpu"), dist.group.WORLD, shared_parameters=shared)
    try:
        Schedule1F1B(stage, 2).run(*([] if rank else [torch.ones(2, 1)]))
        print(f"rank {rank}: {module.weight.grad.item()}")
    except AttributeError as error:
        print(f"rank {rank}: AttributeError: {error}; the gradient is {module.weight.grad.item()}")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        spawn(run, (f"{folder}/store",), nprocs=2)

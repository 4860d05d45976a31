"""Integers cannot go from stage to stage. Expected: a loss on the last rank, got a RuntimeError there."""

import tempfile

import torch
import torch.distributed as dist
from hyper_parallel.core.pipeline_parallel import PipelineStage, Schedule1F1B
from torch import Tensor, nn
from torch.multiprocessing import spawn


class Both(nn.Linear):
    def forward(self, inputs: Tensor, numbers: Tensor) -> tuple[Tensor, Tensor]:
        return super().forward(inputs), numbers


def run(rank: int, path: str) -> None:
    dist.init_process_group("gloo", init_method=f"file://{path}", rank=rank, world_size=2)
    schedule = Schedule1F1B(PipelineStage(Both(2, 2), rank, 2, torch.device("cpu")), 2)
    try:
        schedule.run(*([] if rank else [torch.ones(2, 2), torch.arange(2)]))
    except RuntimeError as error:
        print(f"rank {rank}: RuntimeError: {error}", flush=True)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        spawn(run, (f"{folder}/store",), nprocs=2, join=False).join(20)

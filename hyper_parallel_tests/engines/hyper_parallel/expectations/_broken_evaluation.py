"""A pipeline cannot evaluate: neither without gradients nor with stages that have no backward. Expected: outputs."""

import tempfile

import torch
import torch.distributed as dist
from hyper_parallel.core.pipeline_parallel import PipelineStage, Schedule1F1B
from torch import nn
from torch.multiprocessing import spawn


def run(rank: int, path: str, has_backward: bool) -> None:
    dist.init_process_group("gloo", init_method=f"file://{path}", rank=rank, world_size=2)
    stage = PipelineStage(nn.Linear(2, 2), rank, 2, torch.device("cpu"), has_backward=has_backward)
    try:
        with torch.no_grad():
            print(f"rank {rank}: {Schedule1F1B(stage, 2).run(*([] if rank else [torch.ones(2, 2)]))}", flush=True)
    except (KeyError, RuntimeError) as error:
        print(f"rank {rank}, has_backward={has_backward}: {type(error).__name__}: {error}".split("\n")[0], flush=True)


if __name__ == "__main__":
    for has_backward in (True, False):
        with tempfile.TemporaryDirectory() as folder:
            spawn(run, (f"{folder}/store", has_backward), nprocs=2, join=False).join(10)

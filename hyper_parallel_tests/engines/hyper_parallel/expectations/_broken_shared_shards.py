"""A sharded parameter cannot be shared by stages. Expected: losses on two of four ranks, got RuntimeErrors."""

import tempfile

import torch
import torch.distributed as dist
from _any_revision import fully_shard, init_device_mesh
from hyper_parallel.core.pipeline_parallel import PipelineStage, Schedule1F1B
from hyper_parallel.core.pipeline_parallel.stage import SharedParameterInfo
from torch import nn
from torch.multiprocessing import spawn


def run(rank: int, path: str) -> None:
    dist.init_process_group("gloo", init_method=f"file://{path}", rank=rank, world_size=4)
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("pp", "dp"))
    place, linear = rank // 2, nn.Linear(2, 2)
    module = fully_shard(nn.Sequential(linear, nn.AvgPool1d(2)) if place else linear, mesh=mesh["dp"])
    shared = SharedParameterInfo(linear.weight, [0, 1])
    stage = PipelineStage(module, place, 2, torch.device("cpu"), mesh["pp"].get_group(), shared_parameters=shared)
    try:
        print(f"rank {rank}: {len(Schedule1F1B(stage, 2).run(*([] if place else [torch.ones(2, 2)])))} losses")
    except RuntimeError as error:
        print(f"rank {rank}: RuntimeError: {error}")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        spawn(run, (f"{folder}/store",), nprocs=4)

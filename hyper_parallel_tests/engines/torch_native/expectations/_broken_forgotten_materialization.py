"""FSDP2 asks for a forgotten to_empty(), and after it the model is still unusable: its start-up is half done."""

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

if __name__ == "__main__":
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    with torch.device("meta"):
        model = nn.Linear(3, 3)
    fully_shard(model, mesh=init_device_mesh("cpu", (1,)))
    for attempt in ("forgotten", "materialized"):
        try:
            model(torch.ones(1, 3))
            print(f"{attempt}: it runs")
        except Exception as error:
            print(f"{attempt}: {type(error).__name__}: {str(error).splitlines()[0]}")
        model.to_empty(device="cpu")
    dist.destroy_process_group()

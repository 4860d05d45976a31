"""A full state dict with cpu_offload of a model on the CPU copies what is sharded, and aliases buffers and replicas."""

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

if __name__ == "__main__":
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    model = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3))
    fully_shard(model, mesh=init_device_mesh("cpu", (1,)))
    state = get_model_state_dict(model, options=StateDictOptions(full_state_dict=True, cpu_offload=True))
    before = state["1.running_mean"].clone()
    model(torch.ones(4, 3))
    print("expected the running mean that was saved,", before, "got", state["1.running_mean"])
    dist.destroy_process_group()

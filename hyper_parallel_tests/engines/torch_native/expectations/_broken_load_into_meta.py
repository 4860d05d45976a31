"""set_model_state_dict() of each rank's parts into a model on the meta device reports success and loads nothing."""

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.checkpoint.state_dict import get_model_state_dict, set_model_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

if __name__ == "__main__":
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    mesh = init_device_mesh("cpu", (1,))
    source = fully_shard(nn.Linear(3, 3), mesh=mesh)
    with torch.device("meta"):
        model = nn.Linear(3, 3)
    fully_shard(model, mesh=mesh)
    print(set_model_state_dict(model, get_model_state_dict(source)))
    print("expected parameters on the cpu, got", {str(parameter.device) for parameter in model.parameters()})
    dist.destroy_process_group()

"""A tensor of which one rank has fp32 and another bf16 is saved, as one of fp32."""

import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Shard

if __name__ == "__main__":
    planner, plans = dcp.DefaultSavePlanner(), []
    for rank, dtype in enumerate((torch.float32, torch.bfloat16)):
        mesh = DeviceMesh("cpu", [0, 1], _init_backend=False, _rank=rank)
        state = {"t": DTensor.from_local(torch.ones(2, dtype=dtype), mesh, [Shard(0)], run_check=False)}
        planner.set_up_planner(state, is_coordinator=rank == 0)
        plans.append(planner.create_local_plan())
    _, metadata = planner.create_global_plan(plans)
    print("expected an error, got", metadata.state_dict_metadata["t"].properties.dtype)

"""A tensor of which one rank gives no part is saved with a hole."""

import torch
import torch.distributed as dist
from hyper_parallel import DTensor, init_device_mesh
from hyper_parallel.core.checkpoint import StandardSavePlanner
from hyper_parallel.core.placement_types import Shard
from torch.testing._internal.distributed.fake_pg import FakeStore

if __name__ == "__main__":
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
    mesh = init_device_mesh("cpu", (2,), mesh_dim_names=("dp",))
    planner = StandardSavePlanner()
    planner.configure_planner({"t": DTensor.from_local(torch.ones(2), mesh, [Shard(0)])}, is_coordinator=True, rank=0)
    mine = planner.build_local_plan()
    planner.configure_planner({}, is_coordinator=True, rank=0)
    _, metadata = planner.build_global_plan([mine, planner.build_local_plan()])
    print("expected an error, got", metadata.state_dict_metadata["t"])

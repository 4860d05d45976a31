"""Of a tensor whose ranks have terms of a sum one term is saved as the whole."""

import torch
import torch.distributed as dist
from hyper_parallel import DTensor, init_device_mesh
from hyper_parallel.core.checkpoint import StandardSavePlanner
from hyper_parallel.core.placement_types import Partial
from torch.testing._internal.distributed.fake_pg import FakeStore

if __name__ == "__main__":
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
    mesh = init_device_mesh("cpu", (2,), mesh_dim_names=("dp",))
    planner = StandardSavePlanner()
    terms = DTensor.from_local(torch.ones(2), mesh, [Partial("sum")])
    planner.configure_planner({"t": terms}, is_coordinator=True, rank=0)
    print("expected an error, got", planner.build_local_plan().items)

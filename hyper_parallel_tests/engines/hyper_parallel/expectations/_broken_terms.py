"""Partial: to Shard it is reduced in full and cut, or fails; to itself it fails; into Partial values are not kept."""

import torch
import torch.distributed as dist
from hyper_parallel import DTensor, init_device_mesh
from hyper_parallel.core.dtensor import distribute_tensor
from hyper_parallel.core.placement_types import Partial, Replicate, Shard
from torch.distributed.tensor.debug import CommDebugMode
from torch.testing._internal.distributed.fake_pg import FakeStore

if __name__ == "__main__":
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
    mesh = init_device_mesh("cpu", (2,), mesh_dim_names=("tp",))
    for target in (Shard(0), Shard(1), Partial("sum")):
        try:
            with CommDebugMode() as sent:
                DTensor.from_local(torch.ones(4, 4), mesh, [Partial("sum")]).redistribute(mesh, [target])
            print(f"P to {target}: {dict(sent.get_comm_counts())}")
        except Exception as error:
            print(f"P to {target}: {type(error).__name__}: {error}")
    whole = distribute_tensor(torch.ones(4), mesh, [Replicate()])
    for what, terms in [
        ("R to P", whole.redistribute(mesh, [Partial("sum")])),
        ("P", distribute_tensor(torch.ones(4), mesh, [Partial("sum")])),
    ]:
        print(f"{what}: expected terms that sum to 1 over 2 ranks, got {terms.to_local().tolist()} on each")
    dist.destroy_process_group()

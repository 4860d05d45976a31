"""Operations on terms are refused, done term by term, or give what passes for whole. Expected: Partial, or a sum."""

import torch
import torch.distributed as dist
from hyper_parallel import DTensor, init_device_mesh
from hyper_parallel.core.placement_types import Partial
from torch.testing._internal.distributed.fake_pg import FakeStore

if __name__ == "__main__":
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
    mesh = init_device_mesh("cpu", (2,), mesh_dim_names=("tp",))
    for what, operator in {
        "view": lambda terms: terms.view((4,)),
        "square, of terms of 1": lambda terms: terms * terms,
        "maximum": lambda terms: terms.max(),
        "absolute value": torch.abs,
    }.items():
        terms = DTensor.from_local(torch.ones(2, 2), mesh, [Partial("sum")])
        try:
            result = operator(terms)
            print(f"{what}: {result.placements}, rank 0 has {result.to_local().tolist()}")
        except Exception as error:
            print(f"{what}: {type(error).__name__}: {str(error).splitlines()[0]}")
    dist.destroy_process_group()

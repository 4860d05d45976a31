"""A module takes a parameter in terms (Partial) without an error."""

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Partial, distribute_module, distribute_tensor
from torch.testing._internal.distributed.fake_pg import FakeStore


def in_terms(name, module, mesh):
    term = distribute_tensor(module.weight.detach(), mesh, [Partial()], src_data_rank=None)
    module.register_parameter("weight", torch.nn.Parameter(term))


if __name__ == "__main__":
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
    try:
        module = distribute_module(torch.nn.Linear(4, 4, bias=False), init_device_mesh("cpu", (2,)), in_terms)
        print(f"expected an error, got a parameter {module.weight.placements}")
    except Exception as error:
        print(f"{type(error).__name__}: {error}")
    dist.destroy_process_group()

"""Backward through an output in an object, such as a dataclass, does not gather again: its parameters are gone."""

from types import SimpleNamespace

import torch
import torch.distributed as dist
from _any_revision import fully_shard, init_device_mesh
from torch import nn
from torch.testing._internal.distributed.fake_pg import FakeStore


class Layer(nn.Linear):
    def forward(self, inputs: torch.Tensor) -> SimpleNamespace:
        return SimpleNamespace(value=super().forward(inputs))


if __name__ == "__main__":
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
    mesh = init_device_mesh("cpu", (2,), mesh_dim_names=("dp",))
    layer = fully_shard(Layer(4, 4), mesh=mesh, reshard_after_forward=True)
    try:
        layer(torch.ones(1, 4, requires_grad=True)).value.sum().backward()
        print("as expected, no error")
    except RuntimeError as error:
        print(f"expected no error, got {error}")

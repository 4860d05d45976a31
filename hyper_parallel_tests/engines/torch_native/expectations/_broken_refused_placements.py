"""Placements that DTensor refuses of operators which it has otherwise: each is an error. Expected: values."""

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Partial, Shard, distribute_tensor
from torch.testing._internal.distributed.fake_pg import FakeStore

dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
mesh = init_device_mesh("cpu", (2,))
uneven = distribute_tensor(torch.rand(3, 4), mesh, [Shard(0)], src_data_rank=None)
columns = distribute_tensor(torch.rand(4, 4), mesh, [Shard(1)], src_data_rank=None)
parts = DTensor.from_local(torch.rand(4, 4), mesh, [Partial()]).requires_grad_()
targets = distribute_tensor(torch.tensor([0, 1, 2]), mesh, [Shard(0)], src_data_rank=None)
for operator in (
    lambda: uneven.view(-1),
    lambda: uneven.unbind(0),
    lambda: uneven[:1].redistribute(mesh, [Shard(0)]).squeeze(0),
    lambda: F.group_norm(uneven.detach().requires_grad_(), 2).sum().backward(),
    lambda: F.rms_norm(columns, (4,)),
    lambda: F.nll_loss(uneven, targets),
    lambda: torch.linalg.vector_norm(parts).backward(),
    lambda: torch.cat([parts, DTensor.from_local(torch.rand(4, 4), mesh, [Partial("avg")])]),
):
    try:
        operator()
    except (AssertionError, RuntimeError, NotImplementedError) as error:
        print(str(error).splitlines()[0])

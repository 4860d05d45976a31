"""Operators, or their gradients, that DTensor refuses: each is an error that names what it lacks. Expected: values."""

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, distribute_tensor
from torch.testing._internal.distributed.fake_pg import FakeStore

dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
mesh = init_device_mesh("cpu", (2,))
x = distribute_tensor(torch.rand(2, 4, 4, 4), mesh, [Replicate()], src_data_rank=None).requires_grad_()
for operator in (
    F.logsigmoid,
    F.hardtanh,
    lambda x: x.prod(0),
    lambda x: x.cumprod(0),
    lambda x: x.cummax(0)[0],
    lambda x: x.clone().tril_(),
    lambda x: x.masked_select(x > 0.5),
    lambda x: x.masked_scatter(x > 0.5, x),
    lambda x: x.select_scatter(x[0], 0, 0),
    lambda x: F.scaled_dot_product_attention(x, x, x, is_causal=True),
):
    try:
        operator(x).sum().backward()
    except (RuntimeError, NotImplementedError) as error:
        print(str(error).splitlines()[0])

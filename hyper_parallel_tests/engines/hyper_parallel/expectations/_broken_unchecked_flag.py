"""set_is_last_backward takes anything for a flag."""

import torch.distributed as dist
from _any_revision import fully_shard, init_device_mesh
from torch import nn
from torch.testing._internal.distributed.fake_pg import FakeStore

if __name__ == "__main__":
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
    layer = fully_shard(nn.Linear(4, 4), mesh=init_device_mesh("cpu", (2,), mesh_dim_names=("dp",)))
    layer.set_is_last_backward("no")
    print(f"expected an error, got {layer.hsdp_scheduler.scheduler_ctx.is_last_backward!r}")

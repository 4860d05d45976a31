"""A mesh over 1022 ranks, of which one rank makes its three groups: tens of seconds, without any communication."""

import time

import torch.distributed as dist
from hyper_parallel import init_device_mesh
from torch.testing._internal.distributed.fake_pg import FakeStore

if __name__ == "__main__":
    dist.init_process_group("fake", store=FakeStore(), rank=5, world_size=1022)
    start = time.monotonic()
    init_device_mesh("cpu", (1, 511, 2))
    print(f"expected less than a second, took {time.monotonic() - start:.0f} s")

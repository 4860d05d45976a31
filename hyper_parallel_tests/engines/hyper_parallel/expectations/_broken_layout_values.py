"""Layouts cannot be keys, for they are compared by value and not hashed; and impossible names are accepted."""

import torch.distributed as dist
from hyper_parallel import Layout
from torch.testing._internal.distributed.fake_pg import FakeStore

if __name__ == "__main__":
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=4)
    try:
        print(len({Layout((2, 2), ("dp", "tp"))("dp", "tp"), Layout((2, 2), ("dp", "tp"))("dp", "tp")}))
    except TypeError as error:
        print(f"expected one key, got TypeError: {error}")
    for names in (("dp",), ("dp", "None")):
        try:
            print(f"axes {names} of a 2 x 2 matrix: accepted, {Layout((2, 2), names).alias_name}")
        except Exception as error:
            print(f"axes {names} of a 2 x 2 matrix: {type(error).__name__}: {error}")
    dist.destroy_process_group()

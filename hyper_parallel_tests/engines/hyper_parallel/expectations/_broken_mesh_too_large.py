"""A mesh of 8 places in a world of 4 ranks: what is refused is a rank, and the mesh is not spoken of."""

import torch.distributed as dist
from _any_revision import init_device_mesh
from torch.testing._internal.distributed.fake_pg import FakeStore

if __name__ == "__main__":
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=4)
    try:
        init_device_mesh("cpu", (2, 4), mesh_dim_names=("dp", "tp"))
    except Exception as error:
        print(f"expected the sizes 8 and 4, got {type(error).__name__}: {error}")

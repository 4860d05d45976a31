"""Meshes are compared by identity: one of the same ranks and names, or the same slice, is another."""

import torch.distributed as dist
from hyper_parallel import DeviceMesh, init_device_mesh
from torch.testing._internal.distributed.fake_pg import FakeStore

if __name__ == "__main__":
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=4)
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    print(print(f"slice of a slice: expected True, got {mesh['dp', 'tp']['tp'] == mesh['tp']}"))
    of_group = DeviceMesh.from_group(dist.group.WORLD, "cpu", mesh_dim_names=("tp",))
    print(f"of a group: expected True, got {of_group == init_device_mesh('cpu', (4,), mesh_dim_names=('tp',))}")
    ranks = [
        init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"), rank_list=one)
        for one in ((0, 1, 2, 3), (0, 2, 1, 3))
    ]
    print(f"ranks 0, 2, 1, 3: expected False, got {ranks[0] == ranks[1]} and {ranks[1].rank_list}")
    dist.destroy_process_group()

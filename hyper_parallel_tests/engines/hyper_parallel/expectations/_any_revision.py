"""What reproductions call on every revision with fully_shard: its mesh, and fully_shard with policies that do nothing.

Only older revisions need this: on the newest the functions of the library are called alike.
"""

from typing import Any

import hyper_parallel
from hyper_parallel.core.fully_shard import api
from hyper_parallel.platform.torch.fully_shard.utils import MixedPrecisionPolicy, OffloadPolicy


def init_device_mesh(
    device_type: str, shape: tuple[int, ...], *, mesh_dim_names: tuple[str, ...], **options: Any
) -> Any:
    """The library's, which until 9 February did not ask for a device."""
    try:
        return hyper_parallel.init_device_mesh(device_type, shape, mesh_dim_names=mesh_dim_names, **options)
    except TypeError:
        return hyper_parallel.init_device_mesh(shape, mesh_dim_names, **options)


def fully_shard(module: Any, **options: Any) -> Any:
    """The library's, which until 26 February had no defaults for its policies."""
    return api.fully_shard(module, **{"mp_policy": MixedPrecisionPolicy(), "offload_policy": OffloadPolicy()} | options)

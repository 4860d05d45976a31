"""The world of ranks that a case runs in, as one rank sees it."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

# Above any case's watchdog: a stuck collective is the watchdog's to judge, with every rank's stacks.
COLLECTIVE_TIMEOUT = timedelta(minutes=30)

_BACKENDS = {"cpu": "gloo", "cuda": "cpu:gloo,cuda:nccl", "npu": "cpu:gloo,npu:hccl"}


@dataclass
class World:
    """One rank's view of the group of ranks.

    Attributes:
        rank: this rank, 0 <= rank < size.
        size: number of ranks, one per card.
        device: where this rank computes.
        engine: the system under test, which makes the meshes.
    """

    rank: int
    size: int
    device: torch.device
    engine: Any
    _meshes: dict[tuple[tuple[str, int], ...], Any] = field(default_factory=dict, repr=False)

    def mesh(self, **dims: int) -> Any:
        """The engine's mesh over all ranks, row-major, e.g. `mesh(dp=2, tp=2)`; the same dims give the same mesh.

        Args:
            dims: name and size of each mesh dimension, outermost first.

        Raises:
            ValueError: the sizes do not multiply to the world's size.
        """
        product = 1
        for size in dims.values():
            product *= size
        if not dims or product != self.size:
            asked = " x ".join(f"{name}={size}" for name, size in dims.items()) or "nothing"
            raise ValueError(f"a mesh of {asked} holds {product} ranks, but the world has {self.size}")
        key = tuple(dims.items())
        if key not in self._meshes:
            self._meshes[key] = self.engine.init_device_mesh(
                self.device.type, tuple(dims.values()), mesh_dim_names=tuple(dims)
            )
        return self._meshes[key]

    def generator(self, seed: int) -> torch.Generator:
        """A CPU generator that draws the same numbers on every rank."""
        import torch

        return torch.Generator().manual_seed(seed)

    def __reduce__(self) -> tuple[Any, ...]:
        """What baselines get: they are computed without the engine."""
        return _world_of_a_baseline, (self.rank, self.size, self.device)


class _NoEngine:
    """What a world has in a baseline in the place of the engine."""

    def __getattr__(self, member: str) -> Any:
        raise AttributeError(f"a baseline runs without the engine, and this one asks it for {member}")


def _world_of_a_baseline(rank: int, size: int, device: torch.device) -> World:
    return World(rank, size, device, _NoEngine())


def join_process_group(device: str, rank: int, size: int, *, siblings: bool = False) -> None:
    """Form the default process group from the environment that the launcher gave.

    Args:
        device: cpu, cuda or npu.
        rank: this process's.
        size: of the group.
        siblings: whether the group is that of the ranks' siblings, which meet in the ranks' store under another name.
    """
    import torch.distributed as dist

    store = None
    if size == 1:
        store = dist.HashStore()
    elif siblings:
        address, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
        ranks_store = dist.TCPStore(address, port, is_master=False, timeout=COLLECTIVE_TIMEOUT)
        store = dist.PrefixStore("siblings", ranks_store)
    dist.init_process_group(_BACKENDS[device], store=store, rank=rank, world_size=size, timeout=COLLECTIVE_TIMEOUT)


def engine_called(name: str) -> Any:
    """The engine of this name; None where this target has no engine at all."""
    try:
        from hyper_parallel_tests.engines.load import load
    except ModuleNotFoundError as error:
        if error.name and error.name.startswith("hyper_parallel_tests.engines"):
            return None
        raise
    return load(name)


def device_of(device: str) -> torch.device:
    """This rank's device, made current where the device has an index."""
    import torch

    if device == "cpu":
        return torch.device("cpu")
    chosen = torch.device(device, int(os.environ["LOCAL_RANK"]))
    torch.get_device_module(device).set_device(chosen)
    return chosen

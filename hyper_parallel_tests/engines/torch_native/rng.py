"""Distributed random numbers of torch_native: PyTorch's on accelerators, plain references for the CPU.

PyTorch's tracker needs a generator that can jump to an offset (Philox), which the CPU has not. There each rank draws
what the full tensor takes and keeps its part, so that a part is one of the tensor that a single card would draw.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, _random, distribute_tensor
from torch.distributed.tensor._dtensor_spec import DTensorSpec, TensorMeta
from torch.distributed.tensor.placement_types import Placement


def is_rng_supported_mesh(device_mesh: DeviceMesh) -> bool:
    """See the port. PyTorch says no for the CPU, where this engine has its references."""
    return device_mesh.device_type == "cpu" or _random.is_rng_supported_mesh(device_mesh)


def manual_seed(seed: int, device_mesh: DeviceMesh) -> None:
    """See the port. PyTorch trusts the ranks to give one seed; here the first rank's is sent along each dimension."""
    if device_mesh.get_coordinate() is None:
        raise RuntimeError(f"rank {dist.get_rank()} is outside {device_mesh}, whose ranks are to be seeded")
    # As a signed number of the same 64 bits, which is what a tensor can hold.
    agreed = torch.tensor([(seed + 2**63) % 2**64 - 2**63], device=device_mesh.device_type)
    for dim in range(device_mesh.ndim):
        group = device_mesh.get_group(dim)
        dist.broadcast(agreed, dist.get_process_group_ranks(group)[0], group)
    unsigned = int(agreed) % 2**64
    if device_mesh.device_type == "cpu":
        torch.manual_seed(unsigned)
    else:
        _random.manual_seed(unsigned, device_mesh)


def parallel_seed(seed: int, device_mesh: DeviceMesh, distinct_dims: Sequence[str] = ("pp",)) -> int:
    """See the port. Source: TorchTitan's set_determinism."""
    index = 0
    for dim in distinct_dims:
        if dim in device_mesh.mesh_dim_names:
            size = device_mesh.size(device_mesh.mesh_dim_names.index(dim))
            index = index * size + device_mesh.get_local_rank(dim)
    return (seed + index) % 2**64


def rng_offsets(
    global_shape: Sequence[int], device_mesh: DeviceMesh, placements: Sequence[Placement]
) -> tuple[int, int]:
    """See the port. PyTorch's own arithmetic, without a device."""
    shape = torch.Size(global_shape)
    stride = torch.empty(shape, device="meta").stride()
    spec = DTensorSpec(device_mesh, tuple(placements), TensorMeta(shape, stride, torch.float32))
    return object.__new__(_random.OffsetBasedRNGTracker)._compute_rng_offsets(spec)


def distributed_dropout(tensor: DTensor, p: float = 0.5, training: bool = True) -> DTensor:
    """See the port."""
    if any(placement.is_partial() for placement in tensor.placements):
        raise ValueError(f"dropout of a partial tensor {tensor.placements}: redistribute it first, e.g. to Replicate()")
    if not training or tensor.device_mesh.device_type != "cpu":
        return F.dropout(tensor, p, training)
    mask = F.dropout(torch.ones(tensor.shape, dtype=tensor.dtype), p)
    return tensor * distribute_tensor(mask, tensor.device_mesh, tensor.placements, src_data_rank=None)


def get_rng_state(device_mesh: DeviceMesh) -> Tensor:
    """See the port."""
    return _generators(device_mesh).get_rng_state().cpu()


def set_rng_state(state: Tensor, device_mesh: DeviceMesh) -> None:
    """See the port."""
    _generators(device_mesh).set_rng_state(state)


def _generators(device_mesh: DeviceMesh) -> Any:
    """Whoever has the default generator of the mesh's device."""
    return torch if device_mesh.device_type == "cpu" else torch.get_device_module(device_mesh.device_type)


class RNGStatesTracker:
    """See the port. The shape is that of Megatron's tracker, here over the generators of the host and of its device."""

    def __init__(self) -> None:
        self._states: dict[str, list[Tensor]] = {}
        self._seeds: set[int] = set()

    def add(self, name: str, seed: int) -> None:
        """See the port."""
        if name in self._states:
            raise ValueError(f"there is a stream {name!r} already; fork it, or choose another name")
        if seed in self._seeds:
            raise ValueError(f"a stream with seed {seed} exists already: {name!r} would draw the same numbers")
        with _kept():
            torch.manual_seed(seed)
            self._states[name] = _current()
        self._seeds.add(seed)

    @contextmanager
    def fork(self, name: str) -> Iterator[None]:
        """See the port."""
        if name not in self._states:
            raise KeyError(f"no stream {name!r}: known are {', '.join(self._states) or 'none'}; add it first")
        with _kept():
            _restore(self._states[name])
            try:
                yield
            finally:
                self._states[name] = _current()

    def get_states(self) -> dict[str, Any]:
        """See the port."""
        streams = {name: [one.clone() for one in states] for name, states in self._states.items()}
        return {"streams": streams, "seeds": sorted(self._seeds)}

    def set_states(self, states: Mapping[str, Any]) -> None:
        """See the port."""
        self._states = {name: [one.clone() for one in kept] for name, kept in states["streams"].items()}
        self._seeds = set(states["seeds"])


def _current() -> list[Tensor]:
    """States of the default generators: the host's, and its accelerator's where it has one."""
    states = [torch.get_rng_state()]
    if torch.accelerator.is_available():
        states.append(torch.get_device_module().get_rng_state())
    return states


def _restore(states: list[Tensor]) -> None:
    torch.set_rng_state(states[0])
    for state in states[1:]:
        torch.get_device_module().set_rng_state(state)


@contextmanager
def _kept() -> Iterator[None]:
    """Context after which the default generators are where they were."""
    outer = _current()
    try:
        yield
    finally:
        _restore(outer)

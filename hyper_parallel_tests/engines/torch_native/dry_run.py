"""Dry run of torch_native: a real training step on PyTorch's fake tensors, which have shapes and no storage."""

from __future__ import annotations

import gc
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from unittest import mock
from weakref import WeakSet

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode, unset_fake_temporarily
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor.debug import _clear_sharding_prop_cache
from torch.utils._python_dispatch import TorchDispatchMode, is_traceable_wrapper_subclass
from torch.utils._pytree import tree_leaves

from hyper_parallel_tests.engines.port.dry_run import DryRunProgram
from hyper_parallel_tests.engines.shared.simulation import simulated_world

__all__ = ["dry_run", "format_estimates"]


@dataclass(frozen=True)
class Estimate:
    """See the port."""

    parameters: int
    gradients: int
    optimizer: int
    activations: int

    @property
    def total(self) -> int:
        """Of all kinds."""
        return self.parameters + self.gradients + self.optimizer + self.activations


def dry_run(program: Callable[[DeviceMesh], DryRunProgram], degrees: Mapping[str, int], *, rank: int = 0) -> Estimate:
    """See the port."""
    world_size = _check(degrees, rank)
    with torch.random.fork_rng(devices=[]), _own_caches(), simulated_world(rank, world_size), _meshes_are_real():
        mesh = init_device_mesh("cpu", tuple(degrees.values()), mesh_dim_names=tuple(degrees))
        with FakeTensorMode(allow_non_fake_inputs=True), _BalancedRouting():
            return estimate(program(mesh))


def estimate(program: DryRunProgram) -> Estimate:
    """Runs a step of a program and counts."""
    if program.in_flight < 1:
        raise ValueError(f"in_flight is {program.in_flight}: at least one micro-batch waits for its backward")
    parameters = list(program.model.parameters())
    at_rest = bytes_of(parameters)
    result, saved = forward(program)
    activations = program.in_flight * saved
    result.backward(torch.ones_like(result))
    gradients = bytes_of([one.grad for one in parameters if one.grad is not None])
    program.optimizer.step()
    return Estimate(at_rest, gradients, states_of(program.optimizer), activations)


def forward(program: DryRunProgram) -> tuple[Tensor, int]:
    """What backward begins with, and the bytes that wait for it."""
    waiting: WeakSet[_Waiting] = WeakSet()
    exempt = {storage._cdata for storage in storages(program.data)}
    exempt |= {storage._cdata for storage in storages(program.model.buffers())}

    def pack(tensor: Tensor) -> _Waiting:
        # During its forward a sharded module has its gathered parameters registered.
        exempt.update(storage._cdata for storage in storages(program.model.parameters()))
        one = _Waiting(tensor)
        waiting.add(one)
        return one

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda one: one.tensor):
        result = program.forward()
    gc.collect()
    found = storages(one.tensor for one in waiting)
    return result, sum(one.nbytes() for one in found if one._cdata not in exempt)


def states_of(optimizer: torch.optim.Optimizer) -> int:
    """Bytes of all states of an optimizer."""
    return bytes_of(one for one in tree_leaves(list(optimizer.state.values())) if isinstance(one, Tensor))


def bytes_of(tensors: Iterable[Tensor]) -> int:
    """Bytes of this rank's parts, each storage once."""
    return sum(one.nbytes() for one in storages(tensors))


def storages(tensors: Iterable[Tensor]) -> list[torch.UntypedStorage]:
    """The storages of this rank's parts, each once."""
    parts = (one.untyped_storage() for tensor in tensors for one in parts_of(tensor))
    return list({one._cdata: one for one in parts}.values())


def parts_of(tensor: Tensor) -> Iterator[Tensor]:
    """Plain tensors that a distributed one, or one that a collective still fills, is made of."""
    if not is_traceable_wrapper_subclass(tensor):
        yield tensor
        return
    inner = (getattr(tensor, name) for name in tensor.__tensor_flatten__()[0])
    for one in inner:
        if isinstance(one, Tensor):
            yield from parts_of(one)


class _Waiting:
    """A tensor that waits for backward."""

    def __init__(self, tensor: Tensor) -> None:
        self.tensor = tensor


class _BalancedRouting(TorchDispatchMode):
    """Tells how often each value occurs, where there are no values: all equally often."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is not torch.ops.aten.bincount.default:
            return func(*args, **kwargs)
        number = kwargs.get("minlength", args[2] if len(args) > 2 else 0)
        if number < 1:
            raise ValueError("a dry run cannot know how many values bincount will find: give it minlength")
        each, left = divmod(args[0].numel(), number)
        with unset_fake_temporarily():
            return torch.tensor([each + (place < left) for place in range(number)])


@contextmanager
def _meshes_are_real() -> Iterator[None]:
    # A mesh reads its ranks, which fake tensors do not have; fully_shard makes one of its own.
    original = DeviceMesh.__init__

    def make(self: DeviceMesh, *args: Any, **kwargs: Any) -> None:
        with unset_fake_temporarily():
            original(self, *args, **kwargs)

    with mock.patch.object(DeviceMesh, "__init__", make):
        yield


@contextmanager
def _own_caches() -> Iterator[None]:
    # DTensor remembers results by meshes that compare equal, and with them the names of groups of another world.
    _clear_sharding_prop_cache()
    try:
        yield
    finally:
        _clear_sharding_prop_cache()


def _check(degrees: Mapping[str, int], rank: int) -> int:
    """The simulated world's size."""
    if not degrees:
        raise ValueError("no degrees: name at least one mesh dimension, such as fsdp=1")
    for name, degree in degrees.items():
        if not isinstance(degree, int) or isinstance(degree, bool) or degree < 1:
            raise ValueError(f"degree {name} is {degree!r}: expected a positive integer")
    world_size = math.prod(degrees.values())
    if rank not in range(world_size):
        shown = " x ".join(f"{name}={degree}" for name, degree in degrees.items())
        raise ValueError(f"rank {rank} is not in the world of {shown}, which has the ranks 0 to {world_size - 1}")
    return world_size


def format_estimates(estimates: Mapping[str, Any]) -> str:
    """See the port."""
    kinds = ("parameters", "gradients", "optimizer", "activations", "total")
    lines = [f"| | {' | '.join(kinds)} |", f"|---|{'---:|' * len(kinds)}"]
    for name, one in estimates.items():
        lines.append(f"| {name} | {' | '.join(str(getattr(one, kind)) for kind in kinds)} |")
    return "\n".join(lines) + "\n"

"""What the library's sharded parameters need on a host without an accelerator.

Each shim acts on CPU tensors alone and changes no value; a test lifts it to show that it is needed.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple
from unittest import mock

import torch.distributed as dist
from torch import Tensor

from hyper_parallel_tests.engines.hyper_parallel.library import find, refuse


class Shim(NamedTuple):
    """One replacement in the library.

    Attributes:
        owner: the library's module or class.
        attribute: of the owner, that is replaced.
        original: what the library has there; None where this version of it has no such attribute, and needs no shim.
    """

    owner: Any
    attribute: str
    original: Any

    @contextmanager
    def lifted(self) -> Iterator[None]:
        """Context in which the library is as it was.

        Raises:
            EngineUnsupported: this version of the library has nothing there.
        """
        if self.original is None:
            refuse(self.attribute, "this version of the library has nothing there that needs a shim")
        with mock.patch.object(self.owner, self.attribute, self.original):
            yield


class _Distributed:
    """torch.distributed with an all-gather of which autograd learns nothing on the CPU.

    gloo's all-gather counts as an in-place change of the buffer that it fills; NCCL's and HCCL's do not. Forward
    saves views of that buffer and the library gathers into it anew for backward, which autograd would refuse.
    """

    def __init__(self, original: Any) -> None:
        self._original = original

    def __getattr__(self, name: str) -> Any:
        return getattr(self._original, name)

    def all_gather_into_tensor(self, output: Tensor, *args: Any, **options: Any) -> Any:
        """PyTorch's, into the same memory."""
        uncounted = output.data if output.device.type == "cpu" else output
        return dist.all_gather_into_tensor(uncounted, *args, **options)


def _without_stream(apply_reduced_grad: Callable[..., Any]) -> Callable[..., Any]:
    """Of a gradient that goes to the host: from the CPU it is there at once, and the CPU has no stream to wait for."""

    @functools.wraps(apply_reduced_grad)
    def without_stream(self: Any, reduced_grad: Tensor, *args: Any, **options: Any) -> Any:
        must_wait = apply_reduced_grad(self, reduced_grad, *args, **options)
        return must_wait and reduced_grad.device.type != "cpu"

    return without_stream


def _install(owner: Any, attribute: str, make: Callable[[Any], Any]) -> Shim:
    """Puts what ``make`` makes of the original in its place, where this version of the library has one."""
    shim = Shim(owner, attribute, getattr(owner, attribute, None))
    if shim.original is not None:
        setattr(owner, attribute, make(shim.original))
    return shim


_parameter = find(
    "hyper_parallel.platform.torch.fully_shard.param:TorchHSDPParamV2",
    "hyper_parallel.core.fully_shard.param:TorchHSDPParamV2",
)
_module = None if _parameter is None else sys.modules[_parameter.__module__]

uncounted_gather = _install(_module, "dist", _Distributed)
offload_without_stream = _install(_parameter, "apply_reduced_grad", _without_stream)

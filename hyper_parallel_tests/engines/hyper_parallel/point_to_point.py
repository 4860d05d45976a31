"""Point-to-point communication: HyperParallel's two transfers, which its pipelines use."""

from __future__ import annotations

from typing import Any

from torch import Tensor
from torch.distributed import ProcessGroup

from hyper_parallel_tests.engines.hyper_parallel.library import platform, platform_has
from hyper_parallel_tests.engines.port import Unsupported

batch_isend_irecv = Unsupported("the library starts transfers one by one")


@platform_has("isend")
def send(tensor: Tensor, dst: int, *, group: ProcessGroup | None = None) -> None:
    """See the port. The library has this as an isend and its wait."""
    isend(tensor, dst, group=group).wait()


@platform_has("irecv")
def recv(tensor: Tensor, src: int, *, group: ProcessGroup | None = None) -> None:
    """See the port. The library has this as an irecv and its wait."""
    irecv(tensor, src, group=group).wait()


@platform_has("isend")
def isend(tensor: Tensor, dst: int, *, group: ProcessGroup | None = None) -> Any:
    """See the port."""
    return platform().isend(tensor, dst, group)


@platform_has("irecv")
def irecv(tensor: Tensor, src: int, *, group: ProcessGroup | None = None) -> Any:
    """See the port."""
    return platform().irecv(tensor, src, group)

"""Point-to-point communication of torch_native: torch.distributed's, on strided tensors too."""

from __future__ import annotations

import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup, Work

from hyper_parallel_tests.engines.shared.handles import Handles, copy_back

_OPERATIONS = {"send": dist.isend, "recv": dist.irecv}


def send(tensor: Tensor, dst: int, *, group: ProcessGroup | None = None) -> None:
    """See the port."""
    dist.send(tensor.contiguous(), dst, group)


def recv(tensor: Tensor, src: int, *, group: ProcessGroup | None = None) -> None:
    """See the port."""
    irecv(tensor, src, group=group).wait()


def isend(tensor: Tensor, dst: int, *, group: ProcessGroup | None = None) -> Work:
    """See the port."""
    return dist.isend(tensor.contiguous(), dst, group)


def irecv(tensor: Tensor, src: int, *, group: ProcessGroup | None = None) -> Handles:
    """See the port."""
    dense = tensor.contiguous()
    return Handles([dist.irecv(dense, src, group)], copy_back([dense], [tensor]))


def batch_isend_irecv(transfers: list[tuple[str, Tensor, int]], *, group: ProcessGroup | None = None) -> list[Handles]:
    """See the port."""
    dense = [tensor.contiguous() for _, tensor, _ in transfers]
    operations = [
        dist.P2POp(_OPERATIONS[direction], tensor, peer, group)
        for (direction, _, peer), tensor in zip(transfers, dense, strict=True)
    ]
    # Some backends return one piece of work for the whole batch.
    works = dist.batch_isend_irecv(operations)
    received = [index for index, (direction, _, _) in enumerate(transfers) if direction == "recv"]
    finish = copy_back([dense[index] for index in received], [transfers[index][1] for index in received])
    return [Handles(works, finish)]

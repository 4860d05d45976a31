"""Port of point-to-point communication."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, Protocol

if TYPE_CHECKING:
    from torch import Tensor
    from torch.distributed import ProcessGroup

    from hyper_parallel_tests.engines.port.collectives import Handle


class PointToPoint(Protocol):
    """Messages between two ranks of a group, matched by source and by order.

    ``src`` and ``dst`` are global ranks, ``group=None`` is the default group. Sender and receiver must agree
    on shape and dtype. Tensors may be strided.
    """

    def send(self, tensor: Tensor, dst: int, *, group: ProcessGroup | None = None) -> None:
        """Sends to ``dst``. Messages between two ranks arrive in the order of sending."""

    def recv(self, tensor: Tensor, src: int, *, group: ProcessGroup | None = None) -> None:
        """Receives the next message of ``src`` into ``tensor``."""

    def isend(self, tensor: Tensor, dst: int, *, group: ProcessGroup | None = None) -> Handle:
        """Starts a ``send``; ``tensor`` must not change before ``wait``."""

    def irecv(self, tensor: Tensor, src: int, *, group: ProcessGroup | None = None) -> Handle:
        """Starts a ``recv``."""

    def batch_isend_irecv(
        self,
        transfers: list[tuple[Literal["send", "recv"], Tensor, int]],
        *,
        group: ProcessGroup | None = None,
    ) -> list[Handle]:
        """Starts ("send" or "recv", tensor, peer) transfers together, so that their order cannot deadlock."""

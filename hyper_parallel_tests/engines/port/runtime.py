"""Port of the runtime base: process groups and their backends."""

from __future__ import annotations

from contextlib import AbstractContextManager
from datetime import timedelta
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import torch
    from torch.distributed import ProcessGroup, Store


class Runtime(Protocol):
    """Process groups: how a program of many ranks begins, divides and ends.

    Ranks are global ranks of the default group unless a docstring says "group rank".
    ``group=None`` always means the default group. Timeouts are ``datetime.timedelta``.
    """

    def get_default_backend_for_device(self, device: str | torch.device) -> str:
        """Backend an engine takes for a device: cpu gloo, cuda nccl, npu hccl.

        Raises:
            ValueError: no backend is known for this device type; the message names it and the known ones.
        """

    def init_process_group(
        self,
        backend: str | None = None,
        *,
        init_method: str | None = None,
        timeout: timedelta | None = None,
        world_size: int = -1,
        rank: int = -1,
        store: Store | None = None,
        device_id: torch.device | None = None,
    ) -> None:
        """Creates the default group; collective over all ranks.

        Without ``backend`` the default backend of ``device_id`` (cpu when that is None) is taken. Rendezvous
        is by ``store`` or by ``init_method``; with neither, by the launcher's environment variables.
        A store, or a prefix of one, serves one default group: its keys outlive the group.
        """

    def destroy_process_group(self, group: ProcessGroup | None = None) -> None:
        """Ends ``group``, or with None the default group and all others. Any later use raises, at once."""

    def is_initialized(self) -> bool:
        """Whether a default group exists."""

    def new_group(
        self, ranks: list[int] | None = None, *, timeout: timedelta | None = None, verified: bool = False
    ) -> ProcessGroup | None:
        """Makes a group of ``ranks`` (None: all). Every rank of the default group must call it, in the same
        order.

        ``timeout`` bounds each collective of the group. In a ``verified`` group all members agree on each
        collective before it starts: when one has not come by the timeout, the call raises on all others, and
        the message names the collective and the absent ranks.

        Returns:
            The group on its members, None elsewhere.
        """

    def split_group(
        self, parent_pg: ProcessGroup | None = None, split_ranks: list[list[int]] | None = None
    ) -> ProcessGroup | None:
        """Divides ``parent_pg`` into disjoint groups of its group ranks; collective over the parent.

        Returns:
            The part that holds the calling rank, None for a rank in no part.

        Raises:
            ValueError: parts overlap or hold a rank that the parent lacks; the message names the rank.
        """

    def get_backend(self, group: ProcessGroup | None = None) -> str:
        """Backend name of ``group``, lower case."""

    def get_process_group_ranks(self, group: ProcessGroup | None = None) -> list[int]:
        """Global ranks of ``group``'s members, in group-rank order."""

    def get_rank(self, group: ProcessGroup | None = None) -> int:
        """The calling rank's group rank in ``group``; -1 for a non-member."""

    def get_world_size(self, group: ProcessGroup | None = None) -> int:
        """Number of members of ``group``; -1 for a non-member."""

    def simulated_world(self, rank: int, world_size: int) -> AbstractContextManager[None]:
        """Context in which this one process is ``rank`` of ``world_size`` ranks and no collective
        communicates.

        For logic that depends on the world but moves no data: meshes, groups, plans, for worlds of up to 1024
        ranks. The outer default group, if any, is back on exit, whatever happens inside.
        """

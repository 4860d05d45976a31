"""Port of distributed random numbers: one stream over many ranks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from torch import Tensor

    from hyper_parallel_tests.engines.port.mesh import DeviceMeshMembers


class RNGStatesTrackerMembers(Protocol):
    """Named streams of random numbers beside the default one, each with a state of its own."""

    def add(self, name: str, seed: int) -> None:
        """Makes a stream that starts at ``seed``. The default stream is left as it is.

        Raises:
            ValueError: there is a stream of that name, or of that seed, which would draw the same numbers.
        """

    def fork(self, name: str) -> AbstractContextManager[None]:
        """Context in which whatever draws from the default stream draws from ``name``.

        Afterwards, after an exception too, the default stream is where it was, and the next ``fork`` of ``name`` goes
        on where this one ended. Forks nest.

        Raises:
            KeyError: there is no stream ``name``.
        """

    def get_states(self) -> dict[str, Any]:
        """The states of all streams, to be kept: later draws do not change what was returned."""

    def set_states(self, states: Mapping[str, Any]) -> None:
        """Takes ``states`` in the place of all streams: drawn next is what was drawn after ``get_states``."""


class Rng(Protocol):
    """Random numbers of which a rank's part is the part of what a single card would draw.

    The default stream is the one that ``torch.rand`` and all operations draw from. Its state is the same on all ranks
    of a mesh when a distributed tensor is drawn, and the same again afterwards, as if each had drawn the full tensor.
    """

    def is_rng_supported_mesh(self, device_mesh: DeviceMeshMembers) -> bool:
        """Whether distributed tensors can be drawn on the mesh's devices."""

    def manual_seed(self, seed: int, device_mesh: DeviceMeshMembers) -> None:
        """Sets the default stream of all ranks of the mesh to the seed that the mesh's first rank gives; collective.

        Raises:
            RuntimeError: the calling rank is outside the mesh.
        """

    def parallel_seed(self, seed: int, device_mesh: DeviceMeshMembers, distinct_dims: Sequence[str] = ("pp",)) -> int:
        """The seed of the calling rank: ``seed`` plus its index over the dimensions whose ranks are to differ.

        The index is row-major over ``distinct_dims`` in the order given, 0 for the first rank; dimensions that the mesh
        has not do not count. The sum is modulo 2 ** 64.
        """

    def rng_offsets(
        self, global_shape: Sequence[int], device_mesh: DeviceMeshMembers, placements: Sequence[Any]
    ) -> tuple[int, int]:
        """Where in a counter-based stream the calling rank begins to draw its part, and by how much all ranks move on.

        Both are relative to where the stream is, and multiples of 4, since the generator (Philox) makes four numbers at
        once: the part's number in row-major order times the size of the first part, and the size of the full tensor,
        both rounded up. Replicas of a part begin at the same place, other parts elsewhere. No communication.
        """

    def distributed_dropout(self, tensor: Any, p: float = 0.5, training: bool = True) -> Any:
        """Dropout of a distributed tensor, with the mask that a single card would draw for the full tensor.

        Raises:
            ValueError: ``tensor`` is partial, so that no element is known yet.
        """

    def get_rng_state(self, device_mesh: DeviceMeshMembers) -> Tensor:
        """State of the default stream of the mesh's device on this rank, uint8 on the CPU; a copy."""

    def set_rng_state(self, state: Tensor, device_mesh: DeviceMeshMembers) -> None:
        """Puts the default stream where it was at ``get_rng_state``."""

    def RNGStatesTracker(self) -> RNGStatesTrackerMembers:
        """A tracker without any stream."""

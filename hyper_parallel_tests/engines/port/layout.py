"""Port of layouts: HyperParallel's other way to say how a tensor lies on a mesh."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from hyper_parallel_tests.engines.port.mesh import DeviceMeshMembers


class LayoutMembers(Protocol):
    """A device matrix with named axes and, once called with a tensor's axes, which axes divide which dimension.

    Layouts are compared and hashed by value. What a layout of no tensor cannot know (``tensor_map`` and what follows
    from it) is None, or a ValueError.
    """

    mesh_shape: tuple[int, ...]
    """The device matrix, outermost first."""
    alias_name: tuple[str, ...]
    """Name of each axis of the device matrix."""
    rank_list: tuple[int, ...]
    """Global ranks of the device matrix in row-major order."""
    tensor_map: tuple[int | tuple[int, ...], ...] | None
    """For each tensor dimension the axis that divides it, counted from the right of the device matrix, -1 for none.
    Several axes are a tuple, the outermost division first."""
    alias_tensor_map: tuple[str | tuple[str, ...], ...] | None
    """The same by name, "None" for none."""
    placements: Sequence[Any] | None
    """The same as placements: one per axis of the device matrix."""
    partial: Sequence[str | None]
    """For each axis the reduction by which ranks along it still have to be joined, None for none."""

    def __call__(self, *alias_tensor_map: str | tuple[str, ...]) -> LayoutMembers:
        """The layout of a tensor whose dimensions are divided by the axes of these names, "None" for no axis.

        Raises:
            ValueError: there is no axis of that name, or it is named twice; the message has the name.
        """

    def is_partial(self) -> bool:
        """Whether any axis still has to be reduced."""

    def repeat_num(self) -> int:
        """How many ranks hold each element: the size of the device matrix over that of the axes that divide.

        -1 where the layout's last rank is not the world's last: such a layout is not of a pipeline's last stage, which
        alone has a loss to scale.
        """

    def get_global_shape(self, slice_shape: Sequence[int]) -> tuple[int, ...]:
        """Shape of a tensor whose parts, all alike, have ``slice_shape``."""

    def to_dict(self) -> dict[str, Any]:
        """Keys mesh_shape, tensor_map, alias_name, rank_list and interleaved_parallel."""


class Layout(Protocol):
    """Layouts by device matrix and tensor map, and their translation to placements on a mesh."""

    def Layout(
        self, mesh_shape: tuple[int, ...], alias_name: tuple[str, ...], rank_list: Sequence[int] | None = None
    ) -> LayoutMembers:
        """A device matrix over ``rank_list`` (None: ranks 0, 1, ...), and of no tensor yet.

        Raises:
            ValueError: ``alias_name`` is not one name per axis, repeats one, or has the name "None"; or the ranks are
                too many or too few. The message says which.
        """

    def layout_from_placements(
        self, device_mesh: DeviceMeshMembers, placements: Sequence[Any], ndim: int
    ) -> LayoutMembers:
        """The layout of a tensor of ``ndim`` dimensions with these placements.

        Raises:
            ValueError: a placement divides a dimension that such a tensor lacks; or the mesh has no names, or another
                number of dimensions than there are placements.
        """

"""Port of the collectives, on tensors and on objects."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, Protocol

if TYPE_CHECKING:
    from torch import Tensor
    from torch.distributed import ProcessGroup

    ReduceOp = Literal["sum", "avg", "max", "min", "prod"]


class Handle(Protocol):
    """An operation under way."""

    def wait(self) -> Any:
        """Blocks until the operation is over and its output can be read. Raises what the operation raised."""

    def is_completed(self) -> bool:
        """Whether the operation is over; True after ``wait``."""


class Collectives(Protocol):
    """Communication among all ranks of a group.

    Members of a group must call the same collectives in the same order. ``group=None`` is the default group;
    ``src`` and ``dst`` are global ranks, lists are in group-rank order. With ``async_op`` a collective
    returns a Handle and its output is undefined until ``wait``; otherwise it returns None when the output is
    ready. Outputs are written in place.

    Tensors of one call share dtype and device; they may be strided or empty. Bytes are moved unchanged for
    every dtype. Reductions take float32, bfloat16, float16, int64 and bool; for bool, sum and max mean "any",
    prod and min mean "all". ``avg`` is for floating-point dtypes and raises RuntimeError for the others. An
    unknown op is a ValueError.
    """

    def barrier(self, group: ProcessGroup | None = None) -> None:
        """Returns when every member has come."""

    def all_reduce(
        self,
        tensor: Tensor,
        op: ReduceOp = "sum",
        *,
        group: ProcessGroup | None = None,
        async_op: bool = False,
    ) -> Handle | None:
        """Replaces ``tensor`` on every member by the elementwise reduction over the members."""

    def all_gather(
        self,
        tensor_list: list[Tensor],
        tensor: Tensor,
        *,
        group: ProcessGroup | None = None,
        async_op: bool = False,
    ) -> Handle | None:
        """Fills ``tensor_list[i]`` with member i's ``tensor``. Shapes may differ between members."""

    def all_gather_into_tensor(
        self, output: Tensor, tensor: Tensor, *, group: ProcessGroup | None = None, async_op: bool = False
    ) -> Handle | None:
        """Fills ``output`` with the members' ``tensor``, concatenated along dimension 0."""

    def reduce_scatter(
        self,
        output: Tensor,
        tensor_list: list[Tensor],
        op: ReduceOp = "sum",
        *,
        group: ProcessGroup | None = None,
        async_op: bool = False,
    ) -> Handle | None:
        """Member i gets the reduction of all members' ``tensor_list[i]``. The entries' shapes may differ."""

    def reduce_scatter_tensor(
        self,
        output: Tensor,
        tensor: Tensor,
        op: ReduceOp = "sum",
        *,
        group: ProcessGroup | None = None,
        async_op: bool = False,
    ) -> Handle | None:
        """Member i gets the i-th of the n equal parts along dimension 0 of the reduction of ``tensor``."""

    def all_to_all(
        self,
        output_list: list[Tensor],
        input_list: list[Tensor],
        *,
        group: ProcessGroup | None = None,
        async_op: bool = False,
    ) -> Handle | None:
        """Member i's ``input_list[j]`` becomes member j's ``output_list[i]``. Shapes may differ."""

    def all_to_all_single(
        self,
        output: Tensor,
        tensor: Tensor,
        output_split_sizes: list[int] | None = None,
        input_split_sizes: list[int] | None = None,
        *,
        group: ProcessGroup | None = None,
        async_op: bool = False,
    ) -> Handle | None:
        """``all_to_all`` on parts of dimension 0: equal parts, or parts of the given sizes, zero included."""

    def broadcast(
        self, tensor: Tensor, src: int, *, group: ProcessGroup | None = None, async_op: bool = False
    ) -> Handle | None:
        """Replaces ``tensor`` on every member by the one on ``src``."""

    def gather(
        self,
        tensor: Tensor,
        gather_list: list[Tensor] | None,
        dst: int,
        *,
        group: ProcessGroup | None = None,
        async_op: bool = False,
    ) -> Handle | None:
        """Fills ``gather_list`` on ``dst`` with the members' ``tensor``; the others pass None."""

    def scatter(
        self,
        tensor: Tensor,
        scatter_list: list[Tensor] | None,
        src: int,
        *,
        group: ProcessGroup | None = None,
        async_op: bool = False,
    ) -> Handle | None:
        """Member i gets ``scatter_list[i]`` of ``src`` in ``tensor``; the others pass None for the list."""

    def all_gather_object(self, obj: Any, *, group: ProcessGroup | None = None) -> list[Any]:
        """Returns the members' picklable objects."""

    def broadcast_object(self, obj: Any, src: int, *, group: ProcessGroup | None = None) -> Any:
        """Returns the object of ``src`` on every member; what the others pass is ignored."""

    def gather_object(self, obj: Any, dst: int, *, group: ProcessGroup | None = None) -> list[Any] | None:
        """Returns the members' objects on ``dst``, None elsewhere."""

    def scatter_object(self, objects: list[Any] | None, src: int, *, group: ProcessGroup | None = None) -> Any:
        """Returns member i's share ``objects[i]`` of the list on ``src``; the others pass None."""

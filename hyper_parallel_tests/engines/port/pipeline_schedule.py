"""Port of pipeline schedules: which rank computes, sends and receives what, and in which order. No communication."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, Protocol

if TYPE_CHECKING:
    from os import PathLike

    from torch import Tensor

    # Rank of the pipeline -> its actions in order, each as text: stage, kind, micro-batch ("2F0", "1SEND_F3").
    Table = dict[int, list[str]]


class BatchDimSpecMembers(Protocol):
    """Along which dimension an argument is divided into micro-batches; -1: not at all, each gets the whole."""

    batch_dim: int

    @staticmethod
    def from_tuple(batch_dims: tuple[int, ...]) -> tuple[BatchDimSpecMembers, ...]:
        """One for each positional argument.

        Raises:
            TypeError: it is not a tuple of integers.
        """

    @staticmethod
    def from_dict(batch_dims: dict[str, int]) -> dict[str, BatchDimSpecMembers]:
        """One for each keyword argument.

        Raises:
            TypeError: it is not a dict of integers.
        """


class PipelineSchedule(Protocol):
    """Schedules of a pipeline as plain data.

    A model's layers are cut into stages 0 to s - 1, which are spread over the ranks 0 to p - 1 of a pipeline, and a
    batch into micro-batches 0 to m - 1. A table has for each rank its actions, in the text form of PyTorch's schedules
    and of its CSV files. Kinds of actions of stage s and micro-batch i:

        sFi        forward pass
        sBi        backward pass, or in its place
        sIi, sWi     gradient of the inputs (dx), and later that of the weights (dw)
        sSEND_Fi   sends the outputs to the rank of stage s + 1; there: (s + 1)RECV_Fi
        sSEND_Bi   sends the gradient of the inputs to the rank of stage s - 1; there: (s - 1)RECV_Bi

    Nothing is sent between two stages of one rank. Idle slots and actions of data parallelism are not in the table.
    """

    def split_into_stages(
        self,
        num_layers: int,
        num_stages: int,
        *,
        counts: Sequence[int] | None = None,
        weights: Sequence[float] | None = None,
    ) -> list[range]:
        """The layers of each stage: consecutive ones, in order, at least one a stage.

        By default the numbers of layers differ by at most one, the larger ones first. ``counts`` gives them. With
        ``weights``, one a layer, the heaviest stage is as light as can be.

        Raises:
            ValueError: there are more stages than layers, or fewer than one; ``counts`` is not of ``num_stages``
                positive numbers with the sum ``num_layers``; ``weights`` is not of ``num_layers`` non-negative ones;
                both are given.
        """

    def schedule_table(
        self,
        schedule: str,
        pp_size: int,
        n_microbatches: int,
        *,
        stages_per_rank: int | None = None,
        with_communication: bool = True,
    ) -> Table:
        """The table of a schedule that is known by its name, in upper or lower case.

        GPipe and 1F1B have one stage a rank; LoopedBFS, Interleaved1F1B and InterleavedZeroBubble have
        ``stages_per_rank``, by default two: rank r has the stages r, r + p, ... ZBVZeroBubble and DualPipeV have two,
        in the shape of a V: rank r has r and 2p - 1 - r. Actions that run at the same time follow one another. There
        may be fewer micro-batches than stages, unless the schedule is not defined for that.

        Args:
            with_communication: False leaves sends and receives out.

        Raises:
            ValueError: there is no such schedule (the known ones are named); it does not have ``stages_per_rank``;
                or it is not defined for ``n_microbatches``.
        """

    def load_schedule_csv(
        self,
        path: str | PathLike[str],
        num_stages: int,
        n_microbatches: int,
        *,
        format: Literal["compute_only", "compute_comms"] = "compute_only",
    ) -> Table:
        """The table in a CSV file, one line a rank, an action a cell.

        With ``compute_only`` the sends and receives are added, and empty cells are idle slots; else sends and receives
        are in the file. Any assignment of stages to ranks will do.

        Raises:
            ValueError: an action cannot be read; or the table is not complete, has an action twice, has a stage on two
                ranks or an order that cannot be run.
        """

    def dump_schedule_csv(self, table: Mapping[int, Sequence[str]], path: str | PathLike[str]) -> None:
        """Writes a table as ``load_schedule_csv`` reads it."""

    def BatchDimSpec(self, batch_dim: int) -> BatchDimSpecMembers:
        """See ``BatchDimSpecMembers``.

        Raises:
            TypeError: ``batch_dim`` is not an integer.
        """

    def split_microbatches(
        self,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        n_microbatches: int,
        args_batch_dim: Sequence[Any] | None = None,
        kwargs_batch_dim: Mapping[str, Any] | None = None,
    ) -> tuple[list[tuple[Any, ...]], list[dict[str, Any]]]:
        """Positional and keyword arguments of each micro-batch.

        Tensors are divided along dimension 0 unless a ``BatchDimSpec`` tells otherwise; sizes differ by at most one,
        the larger ones first. Anything else goes to each micro-batch as it is. Without arguments, as for all stages but
        the first, each micro-batch has none.

        Raises:
            ValueError: a tensor has fewer rows than there are micro-batches.
        """

    def split_target(self, target: Tensor, n_microbatches: int) -> list[Tensor]:
        """The loss function's target for each micro-batch, divided as the arguments are.

        Raises:
            ValueError: it has fewer rows than there are micro-batches.
        """

    def merge_microbatches(self, outputs: Sequence[Any], batch_dim: Any = None) -> Any:
        """The outputs of all micro-batches as one, in the structure of each: inverse of the split.

        Args:
            batch_dim: a ``BatchDimSpec`` for each tensor of the structure, in the same structure; None: dimension 0.

        Raises:
            ValueError: the outputs of two micro-batches, or ``batch_dim``, have another structure.
        """

    def mpipe_assignment(self, n_microbatches: int, pp_size: int) -> list[list[int]]:
        """The micro-batches whose encoder part each rank of a pipeline computes: dealt out in turn.

        Rank r has r, r + p, r + 2p, ...: so in each round every rank encodes one.
        """

    def mpipe_transpose(self, encoded: Sequence[Sequence[Any]]) -> list[Any]:
        """What the ranks encoded, by rank, put back into the order of the micro-batches, in which the decoder wants it.

        Raises:
            ValueError: the ranks do not have what ``mpipe_assignment`` gives them.
        """

    def mpipe_reordering(self, costs: Sequence[float], n_microbatches: int) -> list[int]:
        """An order of samples in which consecutive, equally many samples are micro-batches of similar cost.

        Element k is the sample that comes at place k. The most expensive micro-batch costs no more than in the order
        given. The order of samples is restored by ``mpipe_restore``.

        Args:
            costs: one a sample, e.g. its number of image patches.

        Raises:
            ValueError: the number of samples is not a multiple of ``n_microbatches``.
        """

    def mpipe_restore(self, items: Sequence[Any], order: Sequence[int]) -> list[Any]:
        """What was computed in ``order``, in the original order.

        Raises:
            ValueError: ``order`` is not a permutation of the places of ``items``.
        """

    def mpipe_table(self, pp_size: int, n_microbatches: int) -> Table:
        """The table of a multimodal step: a whole encoder on each rank, a decoder in ``pp_size`` stages.

        Stage 0 is the encoder, of which each rank computes the micro-batches of its ``mpipe_assignment``; stage k + 1
        is the decoder's stage k, on rank k, which has the micro-batches in order, at most ``pp_size`` - k of them in
        flight as in 1F1B. A rank encodes while its decoder waits, and holds at most four encoded micro-batches at a
        time. What a rank that encodes sends to itself is not in the table.
        """

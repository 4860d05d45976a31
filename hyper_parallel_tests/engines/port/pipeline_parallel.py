"""Port of pipeline parallelism: a model in stages on several ranks, run by a schedule of micro-batches."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from os import PathLike

    import torch
    from torch import nn
    from torch.distributed import ProcessGroup

    from hyper_parallel_tests.engines.port.pipeline_schedule import BatchDimSpecMembers


class Schedule(Protocol):
    """One rank's stages under a schedule."""

    def run(self, *args: Any, **kwargs: Any) -> list[Any]:
        """One pass of a whole batch; all ranks of the pipeline call it together.

        Gradients are added to those that the parameters have, as the sum over the micro-batches: a loss that is a mean
        over rows is divided by the number of micro-batches in the last stage. Where gradients are not enabled
        (``torch.no_grad``), and for stages without a backward, only the forward passes run. What has been computed for
        a micro-batch is released with its backward.

        Args:
            args: the first stage's inputs, for all micro-batches together; the other stages have none, their inputs
                are the outputs of the stage before.
            kwargs: inputs of this rank's stages by name, such as the last one's targets.

        Returns:
            the last stage's outputs, one for each micro-batch in order, without gradients; nothing on the other ranks.

        Raises:
            ValueError, RuntimeError: on every rank, and not on some of them: rows do not divide by the number of
                micro-batches; ranks have other schedules or numbers of micro-batches, or do not have each stage once
                and where the schedule has it; a stage cannot take what the one before gives; shapes are not those of
                the first run, and not all stages have ``dyn_shape``; or a stage raised, or a micro-batch's outputs are
                unlike the others', which the message names with stage and micro-batch. Another run may follow once
                gradients are set to zero.
        """


class PipelineParallel(Protocol):
    """Stages and schedules. In all of them the last stage's output is the loss, a scalar for each micro-batch.

    A rank of a pipeline has one stage or several. Which, a schedule tells: see the port of pipeline schedules.
    """

    def PipelineStage(
        self,
        submodule: nn.Module,
        stage_index: int,
        stage_num: int,
        device: torch.device | None = None,
        group: ProcessGroup | None = None,
        *,
        dyn_shape: bool = False,
        has_backward: bool = True,
        shared_parameters: Any = None,
    ) -> Any:
        """One stage of the model.

        Args:
            submodule: from the outputs of the stage before to those of this one: a tensor or a tuple of them.
            stage_index: 0 is the first stage, ``stage_num`` - 1 the last.
            device: of the submodule, which the activations have too.
            group: the pipeline's ranks, in their order; None: all ranks.
            dyn_shape: whether shapes may differ from run to run.
            has_backward: False for evaluation only.
            shared_parameters: a ``SharedParameterInfo`` or a list of them.

        Raises:
            TypeError: ``shared_parameters`` is something else.
        """

    def SharedParameterInfo(self, parameter: nn.Parameter, shared_stage: Sequence[int]) -> Any:
        """A parameter that several stages have, each its own copy, such as a tied embedding.

        The copies get the values of the first of ``shared_stage`` before the first run begins. At the end of each run,
        after its last backward, the gradients that this run added to the copies are summed, once, and each copy has
        the sum: equal updates keep them equal.

        Raises:
            TypeError: ``parameter`` is not a parameter, or ``shared_stage`` not a list or tuple.
        """

    def ScheduleGPipe(
        self,
        stages: Any,
        micro_batch_num: int,
        args_batch_dim: Sequence[BatchDimSpecMembers] | None = None,
        kwargs_batch_dim: Mapping[str, BatchDimSpecMembers] | None = None,
        *,
        overlap_p2p: bool | None = None,
    ) -> Schedule:
        """All forward passes, then all backward passes.

        Args:
            stages: this rank's stage.
            args_batch_dim, kwargs_batch_dim: how the arguments of ``run`` are divided, by default along dimension 0.
            overlap_p2p: whether receives start early and run beside computations, None as the engine chooses. Values
                are the same.

        Raises:
            ValueError: there are no stages, or several where a rank has one; or fewer than one micro-batch.
        """

    def Schedule1F1B(
        self,
        stages: Any,
        micro_batch_num: int,
        args_batch_dim: Sequence[BatchDimSpecMembers] | None = None,
        kwargs_batch_dim: Mapping[str, BatchDimSpecMembers] | None = None,
        *,
        overlap_p2p: bool | None = None,
    ) -> Schedule:
        """After a warm-up one forward pass and one backward pass in turn; fewer micro-batches than stages will do."""

    def ScheduleInterleaved1F1B(
        self,
        stages: Sequence[Any],
        micro_batch_num: int,
        args_batch_dim: Sequence[BatchDimSpecMembers] | None = None,
        kwargs_batch_dim: Mapping[str, BatchDimSpecMembers] | None = None,
        *,
        overlap_p2p: bool | None = None,
    ) -> Schedule:
        """1F1B of several stages a rank (VPP): rank r of p has the stages r, r + p, ..."""

    def ScheduleInterleavedZeroBubble(
        self,
        stages: Sequence[Any],
        micro_batch_num: int,
        args_batch_dim: Sequence[BatchDimSpecMembers] | None = None,
        kwargs_batch_dim: Mapping[str, BatchDimSpecMembers] | None = None,
        *,
        overlap_p2p: bool | None = None,
    ) -> Schedule:
        """The same with backward in two parts: the gradient of the inputs (dx), and later that of the weights (dw)."""

    def ScheduleZBVZeroBubble(
        self,
        stages: Sequence[Any],
        micro_batch_num: int,
        args_batch_dim: Sequence[BatchDimSpecMembers] | None = None,
        kwargs_batch_dim: Mapping[str, BatchDimSpecMembers] | None = None,
        *,
        overlap_p2p: bool | None = None,
    ) -> Schedule:
        """Two stages a rank in the shape of a V, rank r of p has r and 2p - 1 - r; backward in two parts."""

    def ScheduleFromCsv(
        self,
        stages: Sequence[Any],
        micro_batch_num: int,
        path: str | PathLike[str],
        args_batch_dim: Sequence[BatchDimSpecMembers] | None = None,
        kwargs_batch_dim: Mapping[str, BatchDimSpecMembers] | None = None,
        *,
        overlap_p2p: bool | None = None,
    ) -> Schedule:
        """The schedule in a file: one line a rank, an action a cell, as ``load_schedule_csv`` reads it."""

    def ScheduleAcrossMeshes(
        self, submodule: nn.Module, stage_ranks: Sequence[Sequence[int]], micro_batch_num: int
    ) -> Schedule:
        """GPipe over stages of different numbers of cards, such as encoder and decoder on disjoint meshes.

        Each card of a stage has the whole submodule and some rows of each micro-batch: ``torch.tensor_split`` of them
        over the stage's cards, so perhaps none. Between two stages rows go to whom they belong there.

        ``run`` takes whole arguments on each card, ``args`` on those of the first stage. The last stage's output is
        the *sum* of the loss over the rows given to it; ``run`` returns the sums over all rows, on all of that stage's
        cards. Gradients are sums over all rows, the same on all cards of a stage.

        Args:
            submodule: of this rank's stage; takes and gives tensors with rows in dimension 0.
            stage_ranks: global ranks of each stage, in order.

        Raises:
            ValueError: a rank is in two stages, or this one in none; or fewer than one micro-batch.
        """

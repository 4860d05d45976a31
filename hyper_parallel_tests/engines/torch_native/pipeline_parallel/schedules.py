"""Schedules of torch_native: PyTorch's, with HyperParallel's arguments, which all ranks start and end together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from os import PathLike
from typing import Any

import torch
from torch import Tensor
from torch.distributed import pipelining
from torch.distributed.pipelining import schedules
from torch.utils._pytree import tree_flatten, tree_map

from hyper_parallel_tests.engines.torch_native.pipeline_parallel.agreement import Plan, agree_on, raise_failures
from hyper_parallel_tests.engines.torch_native.pipeline_parallel.shared import SharedParameters
from hyper_parallel_tests.engines.torch_native.pipeline_parallel.stage import PipelineStage
from hyper_parallel_tests.engines.torch_native.pipeline_schedule import load_schedule_csv, schedule_table
from hyper_parallel_tests.engines.torch_native.pipeline_schedule.microbatches import BatchDimSpec, chunk_specs

__all__ = [
    "Schedule1F1B",
    "ScheduleFromCsv",
    "ScheduleGPipe",
    "ScheduleInterleaved1F1B",
    "ScheduleInterleavedZeroBubble",
    "ScheduleZBVZeroBubble",
]


# Of these names the arguments of PyTorch's own step are, which no stage gets.
_TAKEN = {"loss_kwargs", "losses", "return_outputs", "target"}

_ROWS = BatchDimSpec(0)


class _Together:
    """Mixed into PyTorch's schedules: what stages learn of each other at the first run, they learn together."""

    def _initialize_pp_stages(self, stages: Any, *args: Any, **options: Any) -> Any:
        done = super()._initialize_pp_stages(stages, *args, **options)
        raise_failures([one.failure for one in stages if one.failure], stages[0].group)
        return done

    def _merge_outputs(self, output_chunks: list[Any]) -> list[Any]:
        return tree_map(lambda one: one.detach() if isinstance(one, Tensor) else one, list(output_chunks))


class _GPipe(_Together, pipelining.ScheduleGPipe):
    pass


class _OneForwardOneBackward(_Together, pipelining.Schedule1F1B):
    pass


class _Interleaved1F1B(_Together, pipelining.ScheduleInterleaved1F1B):
    pass


class _InterleavedZeroBubble(_Together, pipelining.ScheduleInterleavedZeroBubble):
    pass


class _ZBVZeroBubble(_Together, pipelining.ScheduleZBVZeroBubble):
    pass


class _Table(_Together, schedules._PipelineScheduleRuntime):
    """A table of computations, to which PyTorch adds sends and receives."""

    def __init__(self, stages: list[PipelineStage], n_microbatches: int, table: dict[int, list[str]], **options: Any):
        super().__init__(stages, n_microbatches, **options)
        self._prepare_schedule_with_comms(
            {rank: [schedules._Action.from_str(one) for one in actions] for rank, actions in table.items()}
        )


class _Schedule:
    """See the port. A base of PyTorch's schedules by HyperParallel's names; those below make PyTorch's."""

    _single = False

    def __init__(
        self,
        stages: PipelineStage | Sequence[PipelineStage],
        micro_batch_num: int,
        args_batch_dim: Sequence[BatchDimSpec] | None = None,
        kwargs_batch_dim: Mapping[str, BatchDimSpec] | None = None,
        *,
        overlap_p2p: bool | None = None,
    ) -> None:
        self._stages = [stages] if isinstance(stages, PipelineStage) else list(stages)
        if not self._stages or micro_batch_num < 1 or (self._single and len(self._stages) > 1):
            raise ValueError(
                f"{type(self).__name__} takes {'one stage' if self._single else 'the stages'} of this rank and one "
                f"micro-batch or more, not {len(self._stages)} stages and {micro_batch_num} micro-batches"
            )
        self._micro_batch_num, self._overlap_p2p = micro_batch_num, overlap_p2p
        self._args_dims, self._kwargs_dims = args_batch_dim, kwargs_batch_dim or {}
        self._trains = all(one.trains for one in self._stages)
        self._schedule = self._make(
            loss_fn=_loss if self._trains else None,
            # The losses are the last stage's own, whose sum is what the gradients are of.
            scale_grads=False,
        )
        first = self._stages[0]
        self._group, self._stage_num = first.group, first.num_stages
        self._shared: SharedParameters | None = None
        self._shapes: dict[bool, str] = {}

    def run(self, *args: Any, **kwargs: Any) -> list[Any]:
        """See the port."""
        training = self._trains and torch.is_grad_enabled()
        self._agree(args, kwargs, training)
        specs = chunk_specs(args, kwargs, self._args_dims if args else None, self._kwargs_dims)
        self._schedule._args_chunk_spec, self._schedule._kwargs_chunk_spec = specs
        for stage in self._stages:
            stage.start_again()
        if self._shared is None:
            self._shared = SharedParameters(self._stages, self._stages[0].stage_index_to_group_rank, self._group)
            self._shared.take_values_of_the_first()
        try:
            return (self._train if training else self._evaluate)(args, kwargs) or []
        except Exception:
            # The stages may be prepared in part, or for shapes that the next run does not have.
            self._prepare_anew()
            raise

    def _evaluate(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any] | None:
        outputs = self._schedule.eval(*args, target=_targets(self._micro_batch_num), **kwargs)
        self._raise_failures()
        return outputs

    def _train(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any] | None:
        self._shared.set_aside()
        try:
            outputs = self._schedule.step(*args, target=_targets(self._micro_batch_num), **kwargs)
            self._raise_failures()
            self._shared.sum_gradients()
        finally:
            self._shared.put_back()
        return outputs

    def _agree(self, args: tuple[Any, ...], kwargs: dict[str, Any], training: bool) -> None:
        """Start together: with one plan, and with shapes that all stages know of."""
        shapes, problem = self._described(args, kwargs)
        plan = Plan(
            f"{self._named()} with {self._micro_batch_num} micro-batches of {self._stage_num} stages, "
            f"{'training' if training else 'evaluation'}",
            tuple(stage.stage_index for stage in self._stages),
            self._stages[0].stage_index_to_group_rank,
            shapes,
            changed=training in self._shapes and shapes != self._shapes[training],
            may_change=all(stage.dyn_shape for stage in self._stages),
            problem=problem,
        )
        plans = agree_on(plan, self._stage_num, self._group)
        changed = [(rank, one.shapes) for rank, one in enumerate(plans) if one.changed]
        if changed and not all(one.may_change for one in plans):
            rank, found = changed[0]
            raise ValueError(
                f"rank {rank} gives its stages {found}, not what they were prepared for; stages with dyn_shape=True "
                "take shapes that change"
            )
        if changed:
            self._prepare_anew()
        self._shapes[training] = shapes

    def _prepare_anew(self) -> None:
        """Have PyTorch learn the shapes again, which it does at the first run."""
        self._shapes.clear()
        for flag in (
            "_stage_forward_initialized",
            "_stage_backward_initialized",
            "_stages_forward_initialized",
            "_stages_backward_initialized",
        ):
            if hasattr(self._schedule, flag):
                setattr(self._schedule, flag, False)

    def _described(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[str, str]:
        """Shapes of one micro-batch's arguments in words, and what is wrong with them."""
        # A stage without inputs may be told how to divide those of the first one.
        dims = self._args_dims if args and self._args_dims is not None else [_ROWS] * len(args)
        if len(dims) != len(args):
            return "", f"{len(args)} inputs for args_batch_dim of {len(dims)}"
        taken = sorted(_TAKEN & kwargs.keys())
        if taken:
            return "", f"PyTorch's schedules have a meaning of their own for {', '.join(taken)}: take other names"
        named = [(f"input {place}", spec, one) for place, (spec, one) in enumerate(zip(dims, args, strict=True))]
        named += [(name, self._kwargs_dims.get(name, _ROWS), one) for name, one in kwargs.items()]
        words = []
        for name, spec, value in named:
            for one in tree_flatten(value)[0]:
                if not isinstance(one, Tensor):
                    continue
                shape, dim = list(one.shape), spec.batch_dim
                if dim >= len(shape):
                    return "", f"{name} has no dimension {dim} to be divided along: BatchDimSpec(-1) leaves it whole"
                if dim >= 0 and shape[dim] % self._micro_batch_num:
                    return "", f"{name} has {shape[dim]} rows, no multiple of {self._micro_batch_num} micro-batches"
                if dim >= 0:
                    shape[dim] //= self._micro_batch_num
                words.append(f"{name} {tuple(shape)} {str(one.dtype).removeprefix('torch.')}")
        return ", ".join(words) or "nothing", ""

    def _raise_failures(self) -> None:
        raise_failures([stage.failure for stage in self._stages if stage.failure], self._group)

    def _named(self) -> str:
        return type(self).__name__

    def _make(self, **options: Any) -> Any:
        raise NotImplementedError

    def _by_table(self, table: dict[int, list[str]], **options: Any) -> _Table:
        return _Table(self._stages, self._micro_batch_num, table, defer_pp_recv=self._overlap_p2p is False, **options)


class ScheduleGPipe(_Schedule):
    """See the port. PyTorch's own waits for each receive; a table of the same order does not."""

    _single = True

    def _make(self, **options: Any) -> Any:
        if self._overlap_p2p:
            stage_num = self._stages[0].num_stages
            table = schedule_table("GPipe", stage_num, self._micro_batch_num, with_communication=False)
            return self._by_table(table, **options)
        return _GPipe(self._stages[0], self._micro_batch_num, **options)


class Schedule1F1B(_Schedule):
    """See the port. PyTorch's own refuses fewer micro-batches than stages, and its table is not what it runs."""

    _single = True

    def _make(self, **options: Any) -> Any:
        stage = self._stages[0]
        if self._overlap_p2p or self._micro_batch_num < stage.num_stages:
            return self._by_table(_one_forward_one_backward(stage.num_stages, self._micro_batch_num), **options)
        return _OneForwardOneBackward(stage, self._micro_batch_num, **options)


class ScheduleInterleaved1F1B(_Schedule):
    """See the port."""

    def _make(self, **options: Any) -> Any:
        return _Interleaved1F1B(
            self._stages, self._micro_batch_num, defer_pp_recv=self._overlap_p2p is False, **options
        )


class ScheduleInterleavedZeroBubble(_Schedule):
    """See the port."""

    def _make(self, **options: Any) -> Any:
        return _InterleavedZeroBubble(
            self._stages, self._micro_batch_num, defer_pp_recv=self._overlap_p2p is False, **options
        )


class ScheduleZBVZeroBubble(_Schedule):
    """See the port."""

    def _make(self, **options: Any) -> Any:
        return _ZBVZeroBubble(self._stages, self._micro_batch_num, defer_pp_recv=self._overlap_p2p is False, **options)


class ScheduleFromCsv(_Schedule):
    """See the port."""

    def __init__(
        self,
        stages: PipelineStage | Sequence[PipelineStage],
        micro_batch_num: int,
        path: str | PathLike[str],
        args_batch_dim: Sequence[BatchDimSpec] | None = None,
        kwargs_batch_dim: Mapping[str, BatchDimSpec] | None = None,
        *,
        overlap_p2p: bool | None = None,
    ) -> None:
        self._path = path
        super().__init__(stages, micro_batch_num, args_batch_dim, kwargs_batch_dim, overlap_p2p=overlap_p2p)

    def _named(self) -> str:
        return f"{super()._named()} of {self._table}"

    def _make(self, **options: Any) -> Any:
        table = load_schedule_csv(self._path, self._stages[0].num_stages, self._micro_batch_num)
        self._table = {rank: [one for one in actions if "_" not in one] for rank, actions in table.items()}
        return self._by_table(self._table, **options)


def _one_forward_one_backward(ranks: int, micro_batch_num: int) -> dict[int, list[str]]:
    """Computations only: rank r begins with ranks - r forward passes, as far as there are so many."""
    table = {}
    for rank in range(ranks):
        ahead = min(ranks - rank, micro_batch_num)
        actions = [f"{rank}F{micro}" for micro in range(ahead)]
        for micro in range(micro_batch_num):
            actions.append(f"{rank}B{micro}")
            if micro + ahead < micro_batch_num:
                actions.append(f"{rank}F{micro + ahead}")
        table[rank] = actions
    return table


def _targets(micro_batch_num: int) -> Tensor:
    """PyTorch divides a target among the micro-batches, which here are in the stages' own arguments."""
    return torch.zeros(micro_batch_num)


def _loss(output: Tensor, _: Tensor) -> Tensor:
    return output

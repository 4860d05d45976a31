"""Stages of different numbers of cards: a plain reference, since PyTorch's stages have one rank each.

Card k of n in a stage has rows [k R / n, (k + 1) R / n) of each micro-batch of R, rounded as by `torch.tensor_split`.
A stage maps rows to rows, and the loss is a sum over rows. So a card can compute its rows by itself; between two stages
each row goes to the card that has it there, and its gradient the same way back. The gradient of the weights is the sum
over the cards' terms, added in the order of the cards, so that all of them have the same bits.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from hyper_parallel_tests.engines.torch_native.pipeline_parallel.agreement import (
    Failure,
    Plan,
    raise_failures,
    run_the_same,
)
from hyper_parallel_tests.engines.torch_native.pipeline_parallel.shared import exchange

__all__ = ["ScheduleAcrossMeshes"]


class ScheduleAcrossMeshes:
    """See the port.

    A card whose stage raises goes on without computing, and tells those who wait for its rows that there are none,
    until all ranks have come to the end of the run.
    """

    def __init__(self, submodule: nn.Module, stage_ranks: Sequence[Sequence[int]], micro_batch_num: int) -> None:
        if micro_batch_num < 1:
            raise ValueError(f"a batch is one micro-batch or more, not {micro_batch_num}")
        self._submodule, self._micro_batch_num = submodule, micro_batch_num
        self._stages = [tuple(ranks) for ranks in stage_ranks]
        everywhere = [rank for ranks in self._stages for rank in ranks]
        me = dist.get_rank()
        if len(set(everywhere)) < len(everywhere) or me not in everywhere:
            raise ValueError(f"each rank is in one stage, but rank {me} is to run with {self._stages}")
        self._stage = next(index for index, ranks in enumerate(self._stages) if me in ranks)
        self._place = self._stages[self._stage].index(me)
        self._failure: Failure | None = None

    def run(self, *args: Any, **kwargs: Any) -> list[Tensor]:
        """See the port."""
        training = torch.is_grad_enabled()
        self._failure = None
        rows = self._rows_of_all(args, kwargs, training)
        earlier = [one.grad for one in self._submodule.parameters()]
        if training:
            self._submodule.zero_grad()
        passes = [self._forward(args, kwargs, micro, rows, training) for micro in range(self._micro_batch_num)]
        if training:
            for micro, (given, output) in enumerate(passes):
                self._backward(given, output, micro, rows)
        raise_failures([self._failure] if self._failure else [], None)
        if training:
            self._sum_gradients(earlier)
        return self._sums([output.detach() for _, output in passes]) if self._is_last else []

    @property
    def _is_last(self) -> bool:
        return self._stage == len(self._stages) - 1

    def _forward(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], micro: int, rows: int, training: bool
    ) -> tuple[tuple[Any, ...], Tensor | None]:
        """Inputs and output of this card's rows, None for what a failure has left out."""
        given = self._own_parts(args, micro) if self._stage == 0 else (self._received(rows, self._stage - 1, training),)
        output = None
        if self._failure is None and (self._stage == 0 or given[0] is not None):
            try:
                named = self._own_parts(tuple(kwargs.values()), micro)
                output = self._submodule(*given, **dict(zip(kwargs, named, strict=True)))
                self._check_rows(output, rows)
            except Exception as error:
                output = None
                self._failure = Failure(self._stage, f"the forward of micro-batch {micro}", error)
        if not self._is_last:
            self._send(None if output is None else output.detach(), rows, self._stage + 1)
        return given, output

    def _check_rows(self, output: Tensor, rows: int) -> None:
        first, last = _spans(rows, len(self._stages[self._stage]))[self._place]
        if not self._is_last and len(output) != last - first:
            raise ValueError(f"a stage has as many rows of outputs as of inputs, {last - first}, not {len(output)}")

    def _backward(self, given: tuple[Any, ...], output: Tensor | None, micro: int, rows: int) -> None:
        gradient = None if self._is_last else self._received(rows, self._stage + 1)
        if self._failure is None and output is not None and (self._is_last or gradient is not None):
            try:
                # Nothing of a frozen first stage learns.
                if output.requires_grad:
                    output.backward(gradient)
            except Exception as error:
                self._failure = Failure(self._stage, f"the backward of micro-batch {micro}", error)
        if self._stage:
            self._send(None if given[0] is None else given[0].grad, rows, self._stage - 1)

    def _rows_of_all(self, args: Any, kwargs: Any, training: bool) -> int:
        """Rows of a micro-batch, which all ranks must agree on, as on what they run; collective."""
        way = "training" if training else "evaluation"
        common = f"{self._micro_batch_num} micro-batches over the ranks {self._stages}, {way}"
        run_the_same(Plan(common, (self._stage,)), None)
        own = {len(one) for one in (*args, *kwargs.values()) if isinstance(one, Tensor)}
        heard: list[Any] = [None] * dist.get_world_size()
        dist.all_gather_object(heard, own)
        found = sorted(set().union(*heard))
        if len(found) != 1 or found[0] % self._micro_batch_num:
            raise ValueError(
                f"all arguments must have one number of rows, a multiple of {self._micro_batch_num} micro-batches, "
                f"but they have {found}"
            )
        return found[0] // self._micro_batch_num

    def _own_parts(self, values: tuple[Any, ...], micro: int) -> tuple[Any, ...]:
        """This card's rows of a micro-batch."""

        def part(value: Any) -> Any:
            if not isinstance(value, Tensor):
                return value
            whole = value.chunk(self._micro_batch_num)[micro]
            return whole.tensor_split(len(self._stages[self._stage]))[self._place]

        return tuple(part(one) for one in values)

    def _send(self, part: Tensor | None, rows: int, stage: int) -> None:
        """This card's rows to the cards of another stage, whose first message tells what they are, or None."""
        start, _ = _spans(rows, len(self._stages[self._stage]))[self._place]
        for rank, first, last in self._meetings(rows, stage):
            if part is None:
                dist.send_object_list([None], rank)
                continue
            piece = part[first - start : last - start].contiguous()
            dist.send_object_list([(piece.shape, piece.dtype)], rank)
            dist.send(piece, rank)

    def _received(self, rows: int, stage: int, requires_grad: bool = False) -> Tensor | None:
        """This card's rows from the cards of another stage, as a leaf; None if one of them has none to give."""
        pieces, complete = [], True
        for rank, _, _ in self._meetings(rows, stage):
            told: list[Any] = [None]
            dist.recv_object_list(told, rank)
            if told[0] is None:
                complete = False
                continue
            shape, dtype = told[0]
            piece = torch.empty(shape, dtype=dtype, device=_device_of(self._submodule))
            dist.recv(piece, rank)
            pieces.append(piece)
        if not complete:
            return None
        return torch.cat(pieces).requires_grad_(requires_grad and pieces[0].is_floating_point())

    def _meetings(self, rows: int, stage: int) -> list[tuple[int, int, int]]:
        """Ranks of another stage with the rows that they and this card have: rank, first row, row after the last.

        A card without rows shares none, and so the first card tells it of what form they would be.
        """
        start, end = _spans(rows, len(self._stages[self._stage]))[self._place]
        found = []
        for place, (first, last) in enumerate(_spans(rows, len(self._stages[stage]))):
            common = max(start, first), min(end, last)
            empty = (start == end and place == 0) or (first == last and self._place == 0)
            if common[0] < common[1] or empty:
                found.append((self._stages[stage][place], common[0], max(common)))
        return found

    def _sum_gradients(self, earlier: list[Tensor | None]) -> None:
        """Over the cards of the stage, zeros for parameters that none of them has used; collective among them."""
        for one, before in zip(self._submodule.parameters(), earlier, strict=True):
            if not one.requires_grad:
                continue
            own = torch.zeros_like(one) if one.grad is None else one.grad
            total = self._sum_over_cards(own)
            one.grad = total if before is None else before + total

    def _sums(self, losses: list[Tensor]) -> list[Tensor]:
        return list(self._sum_over_cards(torch.stack(losses)).unbind())

    def _sum_over_cards(self, own: Tensor) -> Tensor:
        ranks = self._stages[self._stage]
        found = exchange(own, {rank: torch.empty_like(own) for rank in ranks}, None)
        return torch.stack([found[rank] for rank in ranks]).sum(0)


def _spans(rows: int, cards: int) -> list[tuple[int, int]]:
    """The rows of each card: the first one, and the one after the last."""
    least, more = divmod(rows, cards)
    ends = [least * place + min(place, more) for place in range(cards + 1)]
    return list(zip(ends[:-1], ends[1:], strict=True))


def _device_of(module: nn.Module) -> torch.device:
    return next((one.device for one in module.parameters()), torch.device("cpu"))

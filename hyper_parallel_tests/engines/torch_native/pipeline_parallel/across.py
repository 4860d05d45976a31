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

from hyper_parallel_tests.engines.torch_native.pipeline_parallel.shared import exchange

__all__ = ["ScheduleAcrossMeshes"]


class ScheduleAcrossMeshes:
    """See the port."""

    def __init__(self, submodule: nn.Module, stage_ranks: Sequence[Sequence[int]], micro_batch_num: int) -> None:
        self._submodule, self._micro_batch_num = submodule, micro_batch_num
        self._stages = [tuple(ranks) for ranks in stage_ranks]
        everywhere = [rank for ranks in self._stages for rank in ranks]
        me = dist.get_rank()
        if len(set(everywhere)) < len(everywhere) or me not in everywhere:
            raise ValueError(f"each rank is in one stage, but rank {me} is to run with {self._stages}")
        self._stage = next(index for index, ranks in enumerate(self._stages) if me in ranks)
        self._place = self._stages[self._stage].index(me)

    def run(self, *args: Any, **kwargs: Any) -> list[Tensor]:
        """See the port."""
        rows = self._rows_of_all(args, kwargs)
        inputs = [self._own_parts(args, micro) for micro in range(self._micro_batch_num)]
        named = [self._own_parts(tuple(kwargs.values()), micro) for micro in range(self._micro_batch_num)]
        training = torch.is_grad_enabled()
        earlier = [one.grad for one in self._submodule.parameters()]
        for one in self._submodule.parameters():
            one.grad = None
        passes = []
        for micro in range(self._micro_batch_num):
            given = inputs[micro] if self._stage == 0 else (self._received(rows, self._stage - 1, training),)
            output = self._submodule(*given, **dict(zip(kwargs, named[micro], strict=True)))
            if not self._is_last:
                self._send(output.detach(), rows, self._stage + 1)
            passes.append((given, output))
        if training:
            for given, output in passes:
                self._backward(given, output, rows)
            self._sum_gradients(earlier)
        return self._sums([output.detach() for _, output in passes]) if self._is_last else []

    @property
    def _is_last(self) -> bool:
        return self._stage == len(self._stages) - 1

    def _backward(self, given: tuple[Any, ...], output: Tensor, rows: int) -> None:
        output.backward(None if self._is_last else self._received(rows, self._stage + 1))
        if self._stage:
            self._send(given[0].grad, rows, self._stage - 1)

    def _rows_of_all(self, args: Any, kwargs: Any) -> int:
        """Rows of a micro-batch, which all ranks must agree on; collective."""
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

    def _send(self, part: Tensor, rows: int, stage: int) -> None:
        """This card's rows to the cards of another stage, whose first message tells what they are."""
        start, _ = _spans(rows, len(self._stages[self._stage]))[self._place]
        for rank, first, last in self._meetings(rows, stage):
            piece = part[first - start : last - start].contiguous()
            dist.send_object_list([(piece.shape, piece.dtype)], rank)
            dist.send(piece, rank)

    def _received(self, rows: int, stage: int, requires_grad: bool = False) -> Tensor:
        """This card's rows from the cards of another stage, as a leaf."""
        pieces = []
        for rank, _, _ in self._meetings(rows, stage):
            told: list[Any] = [None]
            dist.recv_object_list(told, rank)
            shape, dtype = told[0]
            piece = torch.empty(shape, dtype=dtype, device=_device_of(self._submodule))
            dist.recv(piece, rank)
            pieces.append(piece)
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
        """Over the cards of the stage, for those parameters that any of them has used; collective among them."""
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

"""What each rank really does in a run: computations and messages, in order.

What goes from stage to stage is sealed. The first columns of an activation name the stage and the micro-batch that it
is from, those of its gradient likewise; a stage reads them, and computes as if they were zero. So each message and each
computation tells by itself what it is, and one that gets another's input does not go unseen.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode

from hyper_parallel_tests.models.seeding import build

__all__ = ["Record", "SealedStage", "sealed_stages"]

_FORWARD, _BACKWARD = 1.0, -1.0
_SEAL = 3
WIDTH = 6


@dataclass
class Record:
    """One rank's run.

    Attributes:
        actions: computations and messages in the text form of tables: 0F1, 0SEND_F1, 0I1, 0W1, ...
        strays: computations that got something else than the result of their neighbour for the same micro-batch.
        kept: for each computation the micro-batches of which its rank still had activations when it began, by stage.
    """

    actions: list[str] = field(default_factory=list)
    strays: list[str] = field(default_factory=list)
    kept: list[tuple[str, frozenset[tuple[int, int]]]] = field(default_factory=list)
    _on: bool = False
    _messages: list[tuple[int, str, Tensor]] = field(default_factory=list)
    _alive: dict[tuple[int, int], StorageWeakRef] = field(default_factory=dict)

    @contextmanager
    def of_a_run(self) -> Iterator[Record]:
        """Record what happens in the block; the first run of stages has passes of its own, and so comes before."""
        self._on = True
        try:
            with _Messages(self):
                yield self
        finally:
            self._on = False
        # What is received is known when all of it has come.
        for place, way, tensor in self._messages:
            self.actions[place] = _message(way, tensor)
        self._messages.clear()

    def computed(self, kind: str, stage: int, micro: int) -> None:
        if self._on:
            alive = frozenset(key for key, one in self._alive.items() if not one.expired())
            self.kept.append((f"{stage}{kind}{micro}", alive))
            self.actions.append(f"{stage}{kind}{micro}")

    def got(self, seal: Sequence[float], way: float, stage: int, micro: int) -> None:
        if self._on and tuple(seal) != (way, stage, micro):
            self.strays.append(f"micro-batch {micro} got {tuple(seal)} where {(way, stage, micro)} was due")

    def holds(self, tensor: Tensor, stage: int, micro: int) -> None:
        if self._on:
            self._alive[stage, micro] = StorageWeakRef(tensor.untyped_storage())

    def transfer(self, way: str, tensor: Tensor) -> None:
        self._messages.append((len(self.actions), way, tensor if way == "RECV" else tensor.clone()))
        self.actions.append("")


class _Messages(TorchDispatchMode):
    """Sees every transfer of sealed tensors, however it is started."""

    def __init__(self, record: Record) -> None:
        super().__init__()
        self._record = record

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func._schema.name
        if name in ("c10d::send", "c10d::recv_"):
            for tensor in args[0]:
                if tensor.is_floating_point() and tensor.shape[-1:] == (WIDTH,):
                    self._record.transfer("SEND" if name == "c10d::send" else "RECV", tensor)
        return func(*args, **(kwargs or {}))


def _message(way: str, tensor: Tensor) -> str:
    kind, stage, micro = (int(one) for one in tensor.reshape(-1, WIDTH)[0, :_SEAL].tolist())
    if kind not in (_FORWARD, _BACKWARD):
        return f"{way} of {tensor.flatten()[:_SEAL].tolist()}, which no stage sealed"
    forward = kind == _FORWARD
    # A table names a receive by the stage that receives.
    stage += 0 if way == "SEND" else 1 if forward else -1
    return f"{stage}{way}_{'F' if forward else 'B'}{micro}"


class _Open(torch.autograd.Function):
    """At the entry of a stage: the seal is read and taken off, that of the gradient is put on."""

    @staticmethod
    def forward(ctx: Any, inputs: Tensor, record: Record, stage: int, micro: int) -> Tensor:
        ctx.where = stage, micro
        if stage:
            record.got(inputs[0, :_SEAL].tolist(), _FORWARD, stage - 1, micro)
        return _with_seal(inputs, (0.0, 0.0, 0.0))

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        return _with_seal(gradient, (_BACKWARD, *ctx.where)), None, None, None


class _Close(torch.autograd.Function):
    """At the exit of a stage: the other way about."""

    @staticmethod
    def forward(ctx: Any, outputs: Tensor, record: Record, stage: int, micro: int, is_last: bool) -> Tensor:
        ctx.record, ctx.where, ctx.is_last = record, (stage, micro), is_last
        return outputs.clone() if is_last else _with_seal(outputs, (_FORWARD, stage, micro))

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        stage, micro = ctx.where
        ctx.record.computed("I", stage, micro)
        if not ctx.is_last:
            ctx.record.got(gradient[0, :_SEAL].tolist(), _BACKWARD, stage + 1, micro)
            gradient = _with_seal(gradient, (0.0, 0.0, 0.0))
        return gradient.clone(), None, None, None, None


class _Weigh(torch.autograd.Function):
    """On the weight: tells when its gradient is computed."""

    @staticmethod
    def forward(ctx: Any, weight: Tensor, record: Record, stage: int, micro: int) -> Tensor:
        ctx.record, ctx.where = record, (stage, micro)
        return weight.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        ctx.record.computed("W", *ctx.where)
        return gradient.clone(), None, None, None


def _with_seal(tensor: Tensor, seal: tuple[float, ...]) -> Tensor:
    sealed = tensor.clone()
    sealed[..., :_SEAL] = sealed.new_tensor(seal)
    return sealed


class SealedStage(nn.Module):
    """A layer and a tanh: (rows, WIDTH) -> the same, or in the last stage a loss; tells `record` what it does.

    Its micro-batch it learns from `numbers`, of which each has its own.
    """

    def __init__(self, record: Record, stage: int, is_last: bool) -> None:
        super().__init__()
        self.layer = build(lambda: nn.Linear(WIDTH, WIDTH), stage)
        self._record, self._stage, self._is_last = record, stage, is_last

    def forward(self, inputs: Tensor, numbers: Tensor) -> Tensor:
        micro = int(numbers)
        self._record.computed("F", self._stage, micro)
        opened = _Open.apply(inputs, self._record, self._stage, micro)
        weight = _Weigh.apply(self.layer.weight, self._record, self._stage, micro)
        hidden = torch.tanh(nn.functional.linear(opened, weight, self.layer.bias))
        self._record.holds(hidden, self._stage, micro)
        outputs = _Close.apply(hidden * hidden, self._record, self._stage, micro, self._is_last)
        return outputs.mean() if self._is_last else outputs


def sealed_stages(record: Record, stages: Sequence[int], stage_num: int) -> list[SealedStage]:
    """Those of one rank."""
    return [SealedStage(record, index, index == stage_num - 1) for index in stages]

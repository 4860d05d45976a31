"""The network cut into pipeline stages, and one training pass over them."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from hyper_parallel_tests.domains.clip_grad.setting import loss
from hyper_parallel_tests.models.mlp import Mlp
from hyper_parallel_tests.models.seeding import Batch


class Stage(nn.Module):
    """Some layers of the network under their own names: rows of inputs -> rows of outputs."""

    def __init__(self, whole: Mlp, first: int, last: int) -> None:
        super().__init__()
        self.layers = nn.ModuleDict({str(i): whole.layers[i] for i in range(first, last)})

    def forward(self, inputs: Tensor) -> Tensor:
        for index, layer in self.layers.items():
            inputs = layer(inputs if index == "0" else torch.tanh(inputs))
        return inputs


def halves(whole: Mlp) -> tuple[Stage, Stage]:
    """The first layer, and the others, which are more: the stages' norms differ."""
    return Stage(whole, 0, 1), Stage(whole, 1, len(whole.layers))


class Pipeline:
    """One rank's side of two stages that exchange activations and gradients by messages."""

    def __init__(self, engine: Any, mesh: Any) -> None:
        self._engine = engine
        self._ranks = [int(one) for one in mesh.mesh]
        self._group = mesh.get_group()
        self.is_first = mesh.get_local_rank() == 0

    def run(self, stage: nn.Module, batch: Batch) -> Tensor:
        """Forward and backward of one batch over both stages; the loss is the last stage's, on both."""
        if self.is_first:
            outputs = stage(batch.inputs)
            self._send(outputs)
            outputs.backward(self._received(outputs))
            return self._received(outputs.new_empty(()))
        inputs = self._received(batch.inputs).requires_grad_()
        value = loss(stage, Batch(inputs, batch.targets))
        value.backward()
        self._send(inputs.grad)
        self._send(value)
        return value

    def _send(self, tensor: Tensor) -> None:
        self._engine.send(tensor.detach(), self._peer(), group=self._group)

    def _received(self, like: Tensor) -> Tensor:
        received = torch.empty_like(like, requires_grad=False)
        self._engine.recv(received, self._peer(), group=self._group)
        return received

    def _peer(self) -> int:
        return self._ranks[1] if self.is_first else self._ranks[0]

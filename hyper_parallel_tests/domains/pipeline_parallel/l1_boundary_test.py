"""What goes back over the boundary between two stages."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from hyper_parallel_tests.domains.pipeline_parallel.kinds import each_kind
from hyper_parallel_tests.domains.pipeline_parallel.networks import Part, batches, whole_network
from hyper_parallel_tests.domains.pipeline_parallel.setting import pipeline
from hyper_parallel_tests.harness import assert_close, assert_equal, contract, in_clean_process
from hyper_parallel_tests.models.mlp import mlp_loss
from hyper_parallel_tests.models.seeding import Batch

MICRO_BATCHES = 4


class Heard(nn.Module):
    """A stage whose gradients are heard: those of its inputs and of its outputs, by micro-batch."""

    def __init__(self, part: Part) -> None:
        super().__init__()
        self.part = part
        self.of_inputs: dict[int, Tensor] = {}
        self.of_outputs: dict[int, Tensor] = {}

    def forward(self, inputs: Tensor, numbers: Tensor, targets: Tensor | None = None) -> Tensor:
        micro = int(numbers)
        if inputs.requires_grad:
            inputs.register_hook(lambda gradient: self.of_inputs.update({micro: gradient.clone()}))
        outputs = self.part(inputs, targets)
        if outputs.requires_grad:
            outputs.register_hook(lambda gradient: self.of_outputs.update({micro: gradient.clone()}))
        return outputs


def gradients_between_layers(model: nn.Module, batch: Batch) -> list[list[Tensor]]:
    """On a single card, of the outputs of each layer but the last: one for each micro-batch."""
    kept: list[Tensor] = []

    def keep(_: nn.Module, __: object, output: Tensor) -> None:
        output.retain_grad()
        kept.append(output)

    for layer in model.layers[:-1]:
        layer.register_forward_hook(keep)
    mlp_loss(model, batch).backward()
    return [list(one.grad.chunk(MICRO_BATCHES)) for one in kept]


@contract("PP-1-02")
@each_kind
def test_gradients_over_the_boundary(engine, world, artifacts, ledger, kind):
    """A stage's outputs have exactly the gradient that the next stage's inputs have, and it is a single card's."""
    stage_num, own = kind.stage_num(world.size), kind.stages_of(world.rank, world.size)
    whole, batch = whole_network(world, stage_num), batches(world)[0]
    heard = [Heard(Part(whole, range(index, index + 1), share=1 / MICRO_BATCHES)) for index in own]
    piped = pipeline(engine, world, kind, artifacts, micro_batches=MICRO_BATCHES, modules=heard)
    numbers = torch.arange(MICRO_BATCHES, device=world.device)
    named = {"targets": batch.targets} if piped.is_last else {}
    piped.schedule.run(*([batch.inputs] if piped.is_first else []), numbers=numbers, **named)
    everybody: list[Any] = [None] * world.size
    dist.all_gather_object(everybody, {index: (one.of_inputs, one.of_outputs) for index, one in piped.modules.items()})
    found = {index: pair for one in everybody for index, pair in one.items()}
    expected = in_clean_process(gradients_between_layers, whole_network(world, stage_num), batch)
    for index in range(stage_num - 1):
        sent, received = (dict(sorted(one.items())) for one in (found[index + 1][0], found[index][1]))
        assert_equal(received, sent, what=f"gradients between stages {index} and {index + 1}")
        assert_close(list(sent.values()), expected[index], ledger["pp_fp32"], what=f"gradients of stage {index + 1}")

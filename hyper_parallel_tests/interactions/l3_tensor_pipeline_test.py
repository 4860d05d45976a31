"""Stages of a pipeline whose layers are divided by tensor parallelism."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from hyper_parallel_tests.harness import World, assert_parity, contract, train_baseline
from hyper_parallel_tests.interactions.decoders import SHAPE, optimizer, whole
from hyper_parallel_tests.interactions.decoders import loss as loss_on_one_card
from hyper_parallel_tests.interactions.life_cycle import assert_closed
from hyper_parallel_tests.interactions.micro_batches import MICRO_BATCHES, NotedPipeline
from hyper_parallel_tests.interactions.scenario import scenario
from hyper_parallel_tests.models.decoder import Decoder, decoder_batch
from hyper_parallel_tests.models.seeding import Batch

HERE = scenario("IX-04")
STEPS, ROWS = 3, 8

each_boundary = pytest.mark.parametrize("sequence", [True, False], ids=["own_tokens", "all_tokens"])


class Stage(nn.Module):
    """A block of the decoder under its own name, with what stands before the first and behind the last.

    From tokens or hidden states to hidden states, at the end to the cross entropy as a share of the batch's.
    """

    def __init__(self, whole: Decoder, place: int) -> None:
        super().__init__()
        self.embedding = whole.embedding if place == 0 else None
        self.blocks = nn.ModuleDict({str(place): whole.blocks[place]})
        ends = place == len(whole.blocks) - 1
        self.norm, self.output = (whole.norm, whole.output) if ends else (None, None)

    def forward(self, given: Tensor, targets: Tensor | None = None, numbers: Tensor | None = None) -> Tensor:
        hidden = given if self.embedding is None else self.embedding(given)
        # The whole row's: between the layers a rank may have some of its tokens only.
        positions = torch.arange(SHAPE.seq, device=given.device)
        for block in self.blocks.values():
            hidden = block(hidden, positions)
        if self.output is None:
            return hidden
        return F.cross_entropy(self.output(self.norm(hidden)).flatten(0, 1), targets.flatten()) / MICRO_BATCHES


def plan(engine: Any, stage: Stage, sequence: bool) -> dict[str, Any]:
    """Heads, inner widths and the vocabulary are divided; with `sequence` all between them runs on own tokens."""
    everywhere = engine.Replicate()
    tokens = engine.Shard(1) if sequence else everywhere
    columns, rows = engine.ColwiseParallel, partial(engine.RowwiseParallel, output_layouts=tokens)
    gathered = partial(engine.PrepareModuleInput, use_local_output=True)
    on_tokens = partial(engine.SequenceParallel, use_local_output=True)
    chosen = {
        "blocks.*.attention": gathered(input_layouts=(tokens, None), desired_input_layouts=(everywhere, None)),
        "blocks.*.ffn": gathered(input_layouts=(tokens,), desired_input_layouts=(everywhere,)),
        **{f"blocks.*.attention.{name}": columns() for name in "qkv"},
        **{f"blocks.*.ffn.{name}": columns() for name in ("gate", "up")},
        "blocks.*.attention.o": rows(),
        "blocks.*.ffn.down": rows(),
    }
    if sequence:
        chosen |= {f"blocks.*.{name}": on_tokens() for name in ("attention_norm", "ffn_norm")}
    if stage.embedding is not None:
        chosen["embedding"] = rows(input_layouts=everywhere)
    if stage.output is not None:
        chosen["output"] = columns(input_layouts=tokens, output_layouts=everywhere)
        chosen |= {"norm": on_tokens()} if sequence else {}
    return chosen


def batches(world: World) -> list[Batch]:
    """A batch a step, the same on all ranks."""
    return [decoder_batch(step, ROWS, SHAPE).to(world.device) for step in range(STEPS)]


def pipeline(engine: Any, world: World, sequence: bool) -> NotedPipeline:
    mesh = HERE.mesh(world)
    place = mesh.get_local_rank("pp")
    stage = Stage(whole(world), place)
    engine.parallelize_module(stage, mesh["tp"], plan(engine, stage, sequence))
    return NotedPipeline(engine, world, "1f1b", {place: stage}, mesh["pp"])


@contract("IX-04")
@each_boundary
def test_trains_as_a_single_card_does(engine, world, ledger, sequence):
    """Whether all tokens go from stage to stage or each rank's own, a run of three steps is the single card's."""
    piped = pipeline(engine, world, sequence)
    baseline = train_baseline(whole(world), batches(world), loss_on_one_card, optimizer=optimizer)
    candidate = piped.train(batches(world), optimizer=optimizer)
    assert_parity(candidate, baseline.only(piped.params), ledger["tp_fsdp_fp32"])


@contract("IX-04")
@each_boundary
def test_order(engine, world, sequence):
    """Micro-batches come forward and back in the plan's order, each from what the neighbour gave for it."""
    piped = pipeline(engine, world, sequence)
    # Stages may have a pass of their own at the first run, by which they learn shapes.
    first, second, *_ = batches(world)
    piped.run(first)
    with piped.noted() as notes:
        piped.run(second)
    assert notes.order == piped.plan
    tokens = SHAPE.seq // HERE.dims["tp"] if sequence else SHAPE.seq
    assert [one.shape for one in notes.assert_passed_on(piped.group)] == [
        (ROWS // MICRO_BATCHES, tokens, SHAPE.hidden)
    ] * MICRO_BATCHES


@contract("IX-04")
@each_boundary
def test_life_cycle_is_closed(engine, world, sequence):
    """After a step no message is under way, no hook is left and nothing has grown."""
    piped, batch = pipeline(engine, world, sequence), batches(world)[0]
    assert_closed(lambda: piped.run(batch), optimizer(piped.model.parameters()), piped.model)

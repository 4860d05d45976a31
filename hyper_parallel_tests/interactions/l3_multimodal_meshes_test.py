"""An encoder of images on some cards and a decoder of text on the others, each sharded over its own."""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from hyper_parallel_tests.harness import (
    World,
    assert_parity,
    contract,
    mean_over_ranks,
    trace,
    train,
    train_baseline,
)
from hyper_parallel_tests.harness.judging.comparison import full
from hyper_parallel_tests.interactions.decoders import optimizer
from hyper_parallel_tests.interactions.life_cycle import assert_closed
from hyper_parallel_tests.interactions.scenario import scenario
from hyper_parallel_tests.models.decoder import DecoderShape
from hyper_parallel_tests.models.multimodal import (
    Multimodal,
    MultimodalBatch,
    MultimodalShape,
    multimodal,
    multimodal_batch,
    multimodal_loss,
)
from hyper_parallel_tests.models.vit import VitShape

HERE = scenario("IX-23")
PARTS, SHARDS = HERE.dims["part"], HERE.dims["dp"]
SHAPE = MultimodalShape(
    vision=VitShape(image=8, patch=4, hidden=8, layers=2, heads=2, mlp=16),
    language=DecoderShape(vocab=12, hidden=12, layers=2, heads=2, kv_heads=1, ffn=8, seq=4, tied=False),
)
STEPS, ROWS = 3, 4


class Seeing(nn.Module):
    """Images (rows, 3, image, image) -> what the decoder reads before the text, (rows, 1 + patches, hidden)."""

    def __init__(self, whole: Multimodal) -> None:
        super().__init__()
        self.vision, self.projection = whole.vision, whole.projection

    def forward(self, images: Tensor) -> Tensor:
        return self.projection(self.vision(images))


class Speaking(nn.Module):
    """What the encoder gives, tokens and targets -> mean cross entropy of the next token."""

    def __init__(self, whole: Multimodal) -> None:
        super().__init__()
        self.language = whole.language

    def forward(self, seen: Tensor, tokens: Tensor, targets: Tensor) -> Tensor:
        return F.cross_entropy(self.language(tokens, prefix=seen).flatten(0, 1), targets.flatten())


class Part:
    """One rank's side: a card of the encoder and one of the decoder have the same rows.

    Attributes:
        model: the encoder or the decoder, sharded over the cards that have it.
        own: these cards' global ranks.
        peer: the card of the other part with the same rows.
    """

    def __init__(self, engine: Any, world: World) -> None:
        self._engine, self._world = engine, world
        place, self._share = divmod(world.rank, SHARDS)
        self._sees = place == 0
        self.own = tuple(place * SHARDS + shard for shard in range(SHARDS))
        self.peer = (1 - place) * SHARDS + self._share
        mesh, whole = HERE.mesh(world)["dp"], multimodal(SHAPE).to(world.device)
        self.model = Seeing(whole) if self._sees else Speaking(whole)
        vision, language = whole.vision, whole.language
        # The rows of the class token and of the positions do not divide: they lie whole, outside of every unit.
        self._whole = [vision.cls, vision.positions] if self._sees else []
        seeing, speaking = (*vision.blocks, vision.patches, vision.norm, whole.projection), (*language.blocks, language)
        for unit in seeing if self._sees else speaking:
            engine.fully_shard(unit, mesh=mesh)
        self._group = mesh.get_group()

    def rows(self, batch: MultimodalBatch) -> MultimodalBatch:
        return batch.part(self._share, SHARDS)

    def step(self, rows: MultimodalBatch) -> Tensor:
        """Forward and backward of both parts; the loss of these rows, 0 on the encoder's cards."""
        if self._sees:
            seen = self.model(rows.images)
            self._engine.send(seen.detach(), self.peer)
            gradient = torch.empty_like(seen)
            self._engine.recv(gradient, self.peer)
            seen.backward(gradient)
            for one in self._whole:
                self._engine.all_reduce(one.grad, group=self._group)
                one.grad /= SHARDS
            return torch.zeros((), device=self._world.device)
        length = 1 + SHAPE.vision.patches
        seen = torch.empty(len(rows.images), length, SHAPE.language.hidden, device=self._world.device)
        self._engine.recv(seen, self.peer)
        loss = self.model(seen.requires_grad_(), rows.tokens, rows.targets)
        loss.backward()
        self._engine.send(seen.grad, self.peer)
        return loss.detach()

    def loss(self, _: nn.Module, rows: MultimodalBatch) -> Tensor:
        """The loss of all rows, on all ranks."""
        return mean_over_ranks(self.step(rows)) * PARTS

    def norm(self, _: nn.Module) -> float:
        """Of the gradients of both parts."""
        found = [one.grad for one in self.model.parameters() if one.grad is not None]
        squares = torch.stack([full(one).double().square().sum() for one in found]).sum()
        return math.sqrt(mean_over_ranks(squares.to(self._world.device)) * PARTS)

    def names(self) -> set[str]:
        return {name for name, _ in self.model.named_parameters()}


def batches(world: World) -> list[MultimodalBatch]:
    """Rows of all ranks, a batch a step."""
    return [multimodal_batch(step, ROWS, SHAPE).to(world.device) for step in range(STEPS)]


@contract("IX-23")
def test_trains_as_a_single_card_does(engine, world, ledger):
    """Loss, norm, gradients and parameters of three steps are those of both parts together on a single card."""
    part, whole = Part(engine, world), batches(world)
    rows = [part.rows(one) for one in whole]
    candidate = train(part.model, rows, part.loss, optimizer=optimizer, backward=None, before_update=part.norm)
    baseline = train_baseline(multimodal(SHAPE).to(world.device), whole, multimodal_loss, optimizer=optimizer)
    assert_parity(candidate, baseline.only(part.names()), ledger["fsdp_1d_fp32"])


@contract("IX-23")
def test_parts_meet_at_their_boundary_alone(engine, world):
    """Parameters and gradients go over the cards of their own part; one message each way goes to the other."""
    part, whole = Part(engine, world), batches(world)
    for batch in whole:
        with trace.collectives() as sent:
            part.step(part.rows(batch))
        messages = [one for one in sent if one.op in {"send", "recv"}]
        assert sorted((one.op, one.peer) for one in messages) == [("recv", part.peer), ("send", part.peer)]
        assert {one.ranks for one in sent if one not in messages} == {part.own}


@contract("IX-23")
def test_life_cycle_is_closed(engine, world):
    """After a step no parameter is gathered, no message is under way and nothing has grown, in either part."""
    part, (whole, *_) = Part(engine, world), batches(world)
    rows = part.rows(whole)
    assert_closed(lambda: part.step(rows), optimizer(part.model.parameters()), part.model)

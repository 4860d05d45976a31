"""Stages of different numbers of cards, such as an encoder and a decoder on disjoint meshes."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from hyper_parallel_tests.domains.pipeline_parallel.meshes import CARDS, Side, layers_over, run
from hyper_parallel_tests.domains.pipeline_parallel.networks import batches, sgd, whole_network
from hyper_parallel_tests.harness import assert_close, assert_equal, assert_parity, contract, train_baseline
from hyper_parallel_tests.models.decoder import DecoderShape
from hyper_parallel_tests.models.mlp import mlp_loss
from hyper_parallel_tests.models.multimodal import (
    Multimodal,
    MultimodalShape,
    multimodal,
    multimodal_batch,
    multimodal_loss,
)
from hyper_parallel_tests.models.seeding import Batch
from hyper_parallel_tests.models.vit import VitShape

SHAPE = MultimodalShape(
    vision=VitShape(image=8, patch=4, hidden=8, layers=1, heads=2, mlp=16),
    language=DecoderShape(vocab=11, hidden=8, layers=1, heads=2, kv_heads=1, ffn=8, seq=4, tied=False),
)


class Seeing(nn.Module):
    """The encoder of images, and the projection into the decoder's space."""

    def __init__(self, whole: Multimodal) -> None:
        super().__init__()
        self.vision, self.projection = whole.vision, whole.projection

    def forward(self, images: Tensor) -> Tensor:
        return self.projection(self.vision(images))


class Speaking(nn.Module):
    """The decoder of the text after an image, and shares of the mean over all tokens."""

    def __init__(self, whole: Multimodal, rows: int) -> None:
        super().__init__()
        self.language, self._rows = whole.language, rows

    def forward(self, prefix: Tensor, tokens: Tensor, targets: Tensor) -> Tensor:
        logits = self.language(tokens, prefix=prefix)
        errors = F.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="sum")
        return errors / (self._rows * targets.shape[1])


@contract("PP-2-04")
@pytest.mark.parametrize("rows", [24, 10], ids=["rows_that_divide", "rows_that_do_not"])
def test_training(engine, world, ledger, rows):
    """Whatever cards each stage has, loss, gradients and parameters of two steps are those of a single card."""
    for cards in CARDS[world.size]:
        side, given = layers_over(engine, world, cards, rows, micro=2), batches(world, rows=rows)
        baseline = train_baseline(whole_network(world, len(cards) + 1), given, mlp_loss, optimizer=sgd)
        candidate = side.train(given, lambda batch, side=side: run(side, batch))
        assert_parity(candidate, baseline.only(side.names()), ledger["pp_fp32"])


@contract("PP-2-04")
def test_fewer_rows_than_cards(engine, world, ledger):
    """Micro-batches of one row leave cards without any, which changes nothing."""
    for cards in CARDS[world.size]:
        side, given = layers_over(engine, world, cards, rows=2, micro=2), batches(world, rows=2)
        baseline = train_baseline(whole_network(world, len(cards) + 1), given, mlp_loss, optimizer=sgd)
        candidate = side.train(given, lambda batch, side=side: run(side, batch))
        assert_parity(candidate, baseline.only(side.names()), ledger["pp_fp32"])


@contract("PP-2-04")
def test_encoder_and_decoder(engine, world, ledger):
    """An encoder of images on some cards and a decoder of text on the others train as they do together on one."""
    given = [multimodal_batch(seed, rows=6, shape=SHAPE).to(world.device) for seed in range(2)]
    for cards in [cards for cards in CARDS[world.size] if len(cards) == 2]:
        whole = multimodal(SHAPE).to(world.device)
        side = Side(engine, world, cards, [Seeing(whole), Speaking(whole, rows=6)], 3)

        def step(batch: Any, side: Side = side) -> list[Tensor]:
            named = {"tokens": batch.tokens, "targets": batch.targets} if side.is_last else {}
            return side.schedule.run(*([batch.images] if side.is_first else []), **named)

        baseline = train_baseline(multimodal(SHAPE).to(world.device), given, multimodal_loss, optimizer=sgd)
        assert_parity(side.train(given, step), baseline.only(side.names()), ledger["pp_fp32"])


@contract("PP-2-04")
def test_losses_and_copies(engine, world, ledger):
    """Each card of the last stage has the losses of all rows, and cards of one stage have the same bits."""
    for cards in CARDS[world.size]:
        side, batch = layers_over(engine, world, cards, rows=12, micro=3), batches(world, rows=12)[0]
        losses = run(side, batch)
        parts = [batch.part(micro, 3) for micro in range(3)]
        whole = whole_network(world, len(cards) + 1)
        expected = [mlp_loss(whole, part).detach() / 3 for part in parts] if side.is_last else []
        assert len(losses) == len(expected)
        if expected:
            assert_close(losses, expected, ledger["pp_fp32"], what="losses")
        everybody: list[Any] = [None] * world.size
        torch.distributed.all_gather_object(everybody, [one.grad for one in side.module.parameters()])
        for rank in side.ranks[side.stage]:
            assert_equal(everybody[rank], everybody[world.rank], what=f"gradients of rank {rank}")


@contract("PP-2-04")
def test_accumulation(engine, world, ledger):
    """Runs add up their gradients, and one without gradients between them adds nothing and has the same losses."""
    for cards in CARDS[world.size]:
        side, batch = layers_over(engine, world, cards, rows=12, micro=3), batches(world, rows=12)[0]
        trained = run(side, batch)
        with torch.no_grad():
            evaluated = run(side, batch)
        run(side, batch)
        assert_equal(evaluated, trained, what="losses of evaluation")
        baseline = train_baseline(whole_network(world, len(cards) + 1), [batch], mlp_loss).steps[0].grads
        found = {name: one.grad for name, one in side.module.named_parameters()}
        assert_close(found, {name: 2 * baseline[name] for name in found}, ledger["pp_fp32"], what="gradients")


@contract("PP-2-04")
def test_values_as_they_are(engine, world, ledger):
    """Rows keep their type from stage to stage, and what is no tensor goes whole to each micro-batch."""
    for cards in CARDS[world.size]:
        side, given = layers_over(engine, world, cards, rows=12, micro=3), batches(world, rows=12)[0]
        side.module.double()
        batch = Batch(given.inputs.double(), given.targets.double())
        named = {"factor": 3.0, "targets": batch.targets} if side.is_last else {}
        try:
            side.schedule.run(*([batch.inputs] if side.is_first else []), **named)
        except RuntimeError as error:
            pytest.fail(f"rows of another type do not go through: {error}")
        whole = whole_network(world, len(cards) + 1).double()
        baseline = train_baseline(whole, [batch], mlp_loss).steps[0].grads
        found = {name: one.grad for name, one in side.module.named_parameters()}
        assert_close(found, {name: 3 * baseline[name] for name in found}, ledger["pp_fp32"], what="gradients")


@contract("PP-2-04")
@pytest.mark.parametrize("frozen", ["first_stage", "last_stage"])
def test_frozen_stage(engine, world, ledger, frozen):
    """A stage that learns nothing, such as an encoder that is done, has no gradients, and the others have theirs."""
    for cards in CARDS[world.size]:
        side, batch = layers_over(engine, world, cards, rows=12, micro=3), batches(world, rows=12)[0]
        if side.is_first if frozen == "first_stage" else side.is_last:
            side.module.requires_grad_(False)
        try:
            run(side, batch)
        except RuntimeError as error:
            pytest.fail(f"a frozen stage ends the run: {error}")
        baseline = train_baseline(whole_network(world, len(cards) + 1), [batch], mlp_loss).steps[0].grads
        found = {name: one.grad for name, one in side.module.named_parameters() if one.grad is not None}
        expected = {name: baseline[name] for name, one in side.module.named_parameters() if one.requires_grad}
        why = "a card of the frozen stage has none"
        assert_close(found, expected, ledger["pp_fp32"], what="gradients", zero_because=why)


class Faulty(nn.Module):
    """A stage whose second micro-batch is one that it cannot take, unless it is told to be sound."""

    def __init__(self, part: nn.Module, way: str) -> None:
        super().__init__()
        self.part, self.way, self._passes = part, way, 0

    def forward(self, inputs: Tensor, **named: Any) -> Tensor:
        self._passes += 1
        outputs = self.part(inputs, **named)
        if self.way == "sound" or self._passes != 2:
            return outputs
        if self.way == "backward":
            outputs.register_hook(self._refuse)
            return outputs
        return outputs[1:] if outputs.ndim and self.way == "rows" else self._refuse(outputs)

    def _refuse(self, _: Tensor) -> Tensor:
        raise RuntimeError("the second micro-batch is bad")


@contract("PP-2-04")
@pytest.mark.watchdog(20)
@pytest.mark.parametrize("way", ["forward", "backward", "rows"])
@pytest.mark.parametrize("guilty", ["first_stage", "last_stage"])
def test_a_stage_that_raises(engine, world, ledger, way, guilty):
    """All ranks get the error of a card in the middle of a run, none of them hangs, and the next run is right."""
    for cards in CARDS[world.size]:
        side, batch = layers_over(engine, world, cards, rows=12, micro=3), batches(world, rows=12)[0]
        bad = 0 if guilty == "first_stage" else len(cards) - 1
        faulty = Faulty(side.module, way if world.rank == side.ranks[bad][0] else "sound")
        side.schedule = engine.ScheduleAcrossMeshes(faulty, side.ranks, 3)
        with pytest.raises(RuntimeError, match=rf"stage {bad} failed in the \w+ of micro-batch 1"):
            run(side, batch)
        faulty.way = "sound"
        faulty.zero_grad()
        run(side, batch)
        baseline = train_baseline(whole_network(world, len(cards) + 1), [batch], mlp_loss).steps[0].grads
        found = {name: one.grad for name, one in side.module.named_parameters()}
        assert_close(found, {name: baseline[name] for name in found}, ledger["pp_fp32"], what="gradients")


@contract("PP-2-04")
@pytest.mark.watchdog(20)
def test_ranks_that_run_something_else(engine, world):
    """Other numbers of micro-batches, or evaluation on one rank alone, are an error on all ranks that says so."""
    cards, batch = CARDS[world.size][0], batches(world, rows=12)[0]
    side = layers_over(engine, world, cards, rows=12, micro=2 if world.rank else 4)
    with pytest.raises(RuntimeError, match="(?s)4 micro-batches.*2 micro-batches"):
        run(side, batch)
    side = layers_over(engine, world, cards, rows=12, micro=2)
    with pytest.raises(RuntimeError, match="evaluation"), torch.set_grad_enabled(world.rank > 0):
        run(side, batch)


@contract("PP-2-04")
def test_ranks_of_the_stages(engine, world):
    """A rank in two stages, a rank in none, and a batch of no micro-batches are refused."""
    module = nn.Linear(2, 2)
    with pytest.raises(ValueError, match="not 0"):
        engine.ScheduleAcrossMeshes(module, [list(range(world.size))], 0)
    with pytest.raises(ValueError, match="rank"):
        engine.ScheduleAcrossMeshes(module, [list(range(world.size)), [0]], 1)
    with pytest.raises(ValueError, match="rank"):
        engine.ScheduleAcrossMeshes(module, [[world.size]], 1)

"""Cross entropy of logits whose vocabulary is divided over ranks."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from hyper_parallel_tests.domains.tensor_parallel.networks import (
    GROUPED,
    UNEVEN_VOCAB,
    decoder_batches,
    divided_decoder,
    logits,
    mesh_of,
    sgd,
    whole_decoder,
)
from hyper_parallel_tests.harness import (
    World,
    assert_close,
    assert_equal,
    assert_parity,
    contract,
    trace,
    train,
    train_baseline,
)
from hyper_parallel_tests.models.seeding import Batch

TOKENS = 6
# Neither two ranks nor four have equally many of these.
UNEVEN = 11

# Options of cross_entropy; `weight` becomes a weight for each class, `ignore_index` stands in some targets.
OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "ignored": {"ignore_index": -100},
    "ignored_class": {"ignore_index": 3},
    "weighted": {"weight": True},
    "weighted_ignored_class": {"weight": True, "ignore_index": 3},
    "weighted_ignored": {"weight": True, "ignore_index": -100},
    "smoothed": {"label_smoothing": 0.1},
    "smoothed_ignored": {"label_smoothing": 0.1, "ignore_index": -100},
}
each_option = pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
each_reduction = pytest.mark.parametrize("reduction", ["mean", "sum", "none"])


def sample(world: World, vocab: int, options: dict[str, Any], scale: float = 1.0) -> tuple[Tensor, Tensor, dict]:
    """Logits, targets and options with their tensors, the same on all ranks; each class is a target, first and last."""
    source = world.generator(vocab)
    found = (torch.randn(TOKENS, vocab, generator=source) * scale).to(world.device)
    targets = torch.randint(vocab, (TOKENS,), generator=source)
    targets[0], targets[-1] = 0, vocab - 1
    if "ignore_index" in options:
        targets[1:3] = options["ignore_index"]
    options = dict(options)
    if options.get("weight"):
        options["weight"] = (torch.rand(vocab, generator=source) + 0.5).to(world.device)
    return found, targets.to(world.device), options


def share(world: World, loss: Tensor) -> Tensor:
    """A scalar in which each token's loss counts differently where the loss is not reduced."""
    return loss if loss.ndim == 0 else (loss * torch.arange(1.0, TOKENS + 1, device=world.device)).sum()


def on_one_card(world: World, whole: Tensor, targets: Tensor, options: dict[str, Any]) -> dict[str, Tensor]:
    whole = whole.clone().requires_grad_()
    loss = F.cross_entropy(whole, targets, **options)
    share(world, loss).backward()
    return {"loss": loss.detach(), "gradient": whole.grad}


def divided(
    engine: Any, world: World, whole: Tensor, targets: Tensor, options: dict[str, Any], class_dim: int = 1
) -> dict[str, Tensor]:
    """Loss and gradient in full; the gradient is divided as the logits are."""
    parts = engine.distribute_tensor(whole.clone(), mesh_of(world), [engine.Shard(class_dim)]).requires_grad_()
    with engine.loss_parallel():
        loss = F.cross_entropy(parts, targets, **options)
        if loss.ndim:
            weights = torch.arange(1.0, TOKENS + 1, device=world.device)
            engine.backward(loss, weights)
        else:
            loss.backward()
    assert tuple(parts.grad.placements) == (engine.Shard(class_dim),)
    return {"loss": loss.detach().full_tensor(), "gradient": parts.grad.full_tensor()}


@pytest.fixture(autouse=True)
def as_before():
    """Takes out what an engine leaves behind when its context is left by an error, so that no other case sees it."""
    handlers = DTensor._op_dispatcher._custom_op_handlers
    kept = dict(handlers)
    yield
    handlers.clear()
    handlers.update(kept)


@contract("TP-2-03")
@each_reduction
@each_option
def test_loss_and_gradient(engine, world, ledger, options, reduction):
    """Both are those of the whole logits, with each option and reduction."""
    whole, targets, options = sample(world, UNEVEN, options | {"reduction": reduction})
    found = divided(engine, world, whole, targets, options)
    assert_close(found, on_one_card(world, whole, targets, options), ledger["tp_fp32"], what="cross entropy")


@contract("TP-2-03")
@each_reduction
def test_even_vocabulary(engine, world, ledger, reduction):
    """So they are where each rank has equally many classes."""
    whole, targets, options = sample(world, 8, OPTIONS["weighted_ignored_class"] | {"reduction": reduction})
    found = divided(engine, world, whole, targets, options)
    assert_close(found, on_one_card(world, whole, targets, options), ledger["tp_fp32"], what="cross entropy")


@contract("TP-2-03")
def test_large_logits(engine, world, ledger):
    """Logits of some hundreds do not overflow: the largest is found over all ranks."""
    whole, targets, options = sample(world, 8, {}, scale=200.0)
    found = divided(engine, world, whole, targets, options)
    expected = on_one_card(world, whole, targets, options)
    # Losses of some hundreds are compared as shares of their size.
    scale = expected["loss"].clone()
    for one in (found, expected):
        one["loss"] = one["loss"] / scale
    assert_close(found, expected, ledger["tp_fp32"], what="cross entropy")


@contract("TP-2-03")
@pytest.mark.watchdog(20)
def test_rank_without_a_class(engine, world, ledger):
    """A vocabulary of fewer classes than ranks leaves the last rank without any, and the loss is still right."""
    vocab = world.size - 1
    whole = torch.randn(TOKENS, vocab, generator=world.generator(0)).to(world.device)
    weighted = whole + torch.arange(vocab, device=world.device)
    targets = torch.zeros(TOKENS, dtype=torch.int64, device=world.device)
    found = divided(engine, world, weighted, targets, {})
    expected = on_one_card(world, weighted, targets, {})
    assert_close(found, expected, ledger["tp_fp32"], what="cross entropy", zero_because="one class alone is certain")


@contract("TP-2-03")
def test_classes_before_other_dimensions(engine, world, ledger):
    """The classes may stand before the tokens, as in (rows, classes, tokens)."""
    source = world.generator(5)
    whole = torch.randn(2, 8, TOKENS, generator=source).to(world.device)
    targets = torch.randint(8, (2, TOKENS), generator=source).to(world.device)
    found = divided(engine, world, whole, targets, {})
    assert_close(found, on_one_card(world, whole, targets, {}), ledger["tp_fp32"], what="cross entropy")


@contract("TP-2-03")
def test_numbers_per_token_are_sent(engine, world):
    """Forward and backward send what grows with the tokens, and never the logits."""
    whole, targets, options = sample(world, 64, {})
    parts = engine.distribute_tensor(whole, mesh_of(world), [engine.Shard(1)]).requires_grad_()
    with engine.loss_parallel(), trace.collectives() as sent:
        F.cross_entropy(parts, targets, **options).backward()
    assert len(sent) > 0
    assert max(one.bytes for one in sent) <= TOKENS * whole.element_size()
    assert {one.op for one in sent} == {"all_reduce"}


class Interruption(Exception):
    """What the context is left by."""


def gathered_bytes(engine: Any, world: World) -> int:
    """The most that one collective of a cross entropy outside the context sends."""
    whole, targets, _ = sample(world, 64, {})
    parts = engine.distribute_tensor(whole, mesh_of(world), [engine.Shard(1)])
    with trace.collectives() as sent:
        F.cross_entropy(parts, engine.distribute_tensor(targets, mesh_of(world), [engine.Replicate()]))
    return max(one.bytes for one in sent)


@contract("TP-2-03")
@pytest.mark.parametrize("leave", ["end", "exception"])
def test_outside_of_the_context(engine, world, leave):
    """After the context, however it ended, divided logits are gathered again as before it."""
    context, before = engine.loss_parallel, gathered_bytes(engine, world)
    try:
        with context():
            if leave == "exception":
                raise Interruption
    except Interruption:
        pass
    assert gathered_bytes(engine, world) == before


@contract("TP-2-03")
def test_contexts_nest(engine, world, ledger):
    """An inner context's end is not the outer one's."""
    whole, targets, options = sample(world, 8, {})
    expected = on_one_card(world, whole, targets, options)
    try:
        with engine.loss_parallel():
            divided(engine, world, whole, targets, options)
            found = divided(engine, world, whole, targets, options)
    except KeyError as error:
        pytest.fail(f"the outer context does not end: {error!r}")
    assert_close(found, expected, ledger["tp_fp32"], what="cross entropy")


SHAPES = {"even": GROUPED, "uneven": UNEVEN_VOCAB}


def partly_ignored_loss(model: nn.Module, batch: Batch) -> Tensor:
    """Cross entropy of the logits, without the first two tokens of each row."""
    targets = batch.targets.clone()
    targets[:, :2] = -100
    return F.cross_entropy(logits(model, batch.inputs).flatten(0, 1), targets.flatten())


@contract("TP-2-03")
@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
@pytest.mark.parametrize("sequence", [False, True], ids=["whole", "own_tokens"])
def test_training(engine, world, ledger, shape, sequence):
    """A decoder whose logits stay divided trains as on one card, with some targets ignored."""
    batches = decoder_batches(world, shape)
    model = divided_decoder(engine, world, shape, sequence=sequence, whole_logits=False)
    with engine.loss_parallel():
        candidate = train(model, batches, partly_ignored_loss, optimizer=sgd)
    baseline = train_baseline(whole_decoder(world, shape), batches, partly_ignored_loss, optimizer=sgd)
    assert_parity(candidate, baseline, ledger["tp_fp32"])


@contract("TP-2-03")
def test_ranks_agree(engine, world):
    """The loss is the same bits on every rank."""
    whole, targets, options = sample(world, UNEVEN, {})
    parts = engine.distribute_tensor(whole, mesh_of(world), [engine.Shard(1)])
    with engine.loss_parallel():
        loss = F.cross_entropy(parts, targets, **options).to_local()
    of_all = engine.from_local(loss[None], mesh_of(world), [engine.Shard(0)]).full_tensor()
    assert_equal(of_all, loss.expand(world.size), what="losses of the ranks")

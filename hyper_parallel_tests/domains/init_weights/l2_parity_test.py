"""Training from a deferred start against training from an ordinary one, divided in several ways."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import pytest
import torch
from torch import nn

from hyper_parallel_tests.domains.init_weights.setting import Network, deferred, initialise, started
from hyper_parallel_tests.harness import (
    assert_bitwise_repeatable,
    assert_close,
    assert_parity,
    contract,
    in_clean_process,
    mean_over_ranks,
    train,
    train_baseline,
)
from hyper_parallel_tests.models.decoder import Decoder, DecoderShape, decoder_batch, decoder_loss
from hyper_parallel_tests.models.mlp import Mlp, mlp_batch, mlp_loss

STEPS = 2
ROWS_PER_RANK = 2
SHAPE = DecoderShape(kv_heads=4, layers=1, seq=8)

# Tensor parallelism leaves norms and embeddings plain, and foreach, the default on an accelerator, takes no DTensors
# beside plain tensors.
OPTIMIZERS = {
    "sgd_momentum": partial(torch.optim.SGD, lr=0.05, momentum=0.9, foreach=False),
    "adamw": partial(torch.optim.AdamW, lr=0.01, weight_decay=0.1, foreach=False),
}

each_optimizer = pytest.mark.parametrize("optimizer", OPTIMIZERS.values(), ids=OPTIMIZERS)


@dataclass(frozen=True)
class Layout:
    """One way to divide a decoder over all ranks.

    Attributes:
        sharded: whether fully_shard has a mesh dimension.
        tensor_parallel: how many ranks share a layer, from the world's size.
        tolerance: the ledger's row for training against one card.
    """

    sharded: bool
    tensor_parallel: Callable[[int], int]
    tolerance: str

    def mesh(self, world: Any) -> Any:
        tp = self.tensor_parallel(world.size)
        return world.mesh(dp=world.size // tp, tp=tp)

    def divide(self, engine: Any, world: Any, model: nn.Module) -> nn.Module:
        """Attention and feed-forward over tp, then every block over dp."""
        mesh = self.mesh(world)
        if mesh.size(1) > 1:
            engine.parallelize_module(model, mesh["tp"], _plan(engine))
        if self.sharded:
            for block in model.blocks:
                engine.fully_shard(block, mesh=mesh["dp"])
            engine.fully_shard(model, mesh=mesh["dp"])
        return model

    def rows(self, world: Any) -> list[Any]:
        """This rank's part of each step's batch; ranks that share a layer share the rows."""
        mesh = self.mesh(world)
        return [rows.part(mesh.get_local_rank("dp"), mesh.size(0)) for rows in batches(world)]


LAYOUTS = {
    "fully_shard": Layout(True, lambda size: 1, "fsdp_1d_fp32"),
    "tensor_parallel": Layout(False, lambda size: size, "tp_fsdp_fp32"),
    "both": Layout(True, lambda size: 2, "tp_fsdp_fp32"),
}

each_layout = pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS)


def _plan(engine: Any) -> dict[str, Any]:
    into = ("attention.q", "attention.k", "attention.v", "ffn.gate", "ffn.up")
    return {f"blocks.*.{name}": engine.ColwiseParallel() for name in into} | {
        f"blocks.*.{name}": engine.RowwiseParallel() for name in ("attention.o", "ffn.down")
    }


def make(tied: bool = True) -> Decoder:
    return Decoder(replace(SHAPE, tied=tied))


def make_untied() -> Decoder:
    """For loading: whether ties survive that is IW-0-01's question."""
    return make(tied=False)


def batches(world: Any) -> list[Any]:
    return [decoder_batch(step, ROWS_PER_RANK * world.size, SHAPE).to(world.device) for step in range(STEPS)]


def train_on_ranks(world, layout, model, optimizer):
    return train(model, layout.rows(world), decoder_loss, optimizer=optimizer, average=mean_over_ranks)


def train_on_one_card(world, optimizer, make=make):
    """All rows on one card after an ordinary start, without any engine."""
    return train_baseline(started(make, world.device), batches(world), decoder_loss, optimizer=optimizer)


def from_deferred_start(engine, world, layout):
    model = layout.divide(engine, world, deferred(engine, make))
    initialise(engine, model, world.device)
    return model


@contract("IW-2-01")
@each_layout
def test_the_same_seed_gives_the_same_parameters(engine, world, ledger, layout):
    """Gathered, every parameter has the bits that it has on one card after an ordinary start."""
    model = from_deferred_start(engine, world, layout)
    expected = dict(started(make, world.device).named_parameters())
    assert_close(dict(model.named_parameters()), expected, ledger["exact"], what="parameters")


@contract("IW-2-01")
@pytest.mark.parametrize("width", [8, 7, 1], ids=["even", "odd", "empty_shards"])
def test_shards_of_any_size_start_alike(engine, world, ledger, width):
    """The same for sizes that do not divide, a tied weight and biases, and in the first step's loss."""
    model = deferred(engine, lambda: Network(width))
    engine.fully_shard(model, mesh=world.mesh(dp=world.size))
    initialise(engine, model, world.device)
    single = started(lambda: Network(width), world.device)
    assert_close(dict(model.named_parameters()), dict(single.named_parameters()), ledger["exact"], what="parameters")
    rows = mlp_batch(0, ROWS_PER_RANK, width).to(world.device)
    expected = in_clean_process(mlp_loss, single, rows)
    assert_close(mlp_loss(model, rows), expected, ledger["fsdp_1d_fp32"], what="the loss")


@contract("IW-2-01")
@pytest.mark.parametrize("width", [8, 6], ids=["even", "odd_parts"])
def test_each_rank_holds_its_part_of_a_part(engine, world, ledger, width):
    """With a layer's rows over tp first, and each part's rows over dp then, a rank has its own, also of odd parts."""
    mesh = world.mesh(dp=world.size // 2, tp=2)
    model = deferred(engine, lambda: Mlp(width, depth=2))
    styles = {"layers.0": engine.ColwiseParallel(), "layers.1": engine.RowwiseParallel()}
    engine.parallelize_module(model, mesh["tp"], styles)
    engine.fully_shard(model, mesh=mesh["dp"])
    initialise(engine, model, world.device)
    full = dict(started(lambda: Mlp(width, depth=2), world.device).named_parameters())
    tp_part = {
        "layers.0.weight": full["layers.0.weight"].chunk(2)[mesh.get_local_rank("tp")],
        "layers.0.bias": full["layers.0.bias"].chunk(2)[mesh.get_local_rank("tp")],
        "layers.1.weight": full["layers.1.weight"].chunk(2, dim=1)[mesh.get_local_rank("tp")],
        "layers.1.bias": full["layers.1.bias"],
    }
    expected = {name: one.chunk(mesh.size(0))[mesh.get_local_rank("dp")] for name, one in tp_part.items()}
    shards = {one.name: one.shard for one in engine.managed_parameters(model)}
    assert_close(shards, expected, ledger["exact"], what="parts")


@contract("IW-2-01")
@each_layout
@each_optimizer
def test_training_goes_on_as_from_an_ordinary_start(engine, world, ledger, layout, optimizer):
    """Divided alike, both starts train bit by bit alike."""
    candidate = train_on_ranks(world, layout, from_deferred_start(engine, world, layout), optimizer)
    ordinary = layout.divide(engine, world, started(make, world.device))
    other = train_on_ranks(world, layout, ordinary, optimizer)
    assert_parity(candidate, other, ledger["exact"], own_because="one card adds up in another order")


@contract("IW-2-01")
@each_layout
def test_a_deferred_start_repeats_bit_by_bit(engine, world, layout):
    """The same start and training again in the same process give the same bits."""
    optimizer = OPTIMIZERS["adamw"]
    assert_bitwise_repeatable(
        lambda: train_on_ranks(world, layout, from_deferred_start(engine, world, layout), optimizer).steps
    )


@contract("IW-2-01")
@each_layout
def test_training_goes_on_as_on_one_card(engine, world, ledger, layout):
    """From a deferred start loss, gradients and parameters follow those of one card."""
    optimizer = OPTIMIZERS["adamw"]
    candidate = train_on_ranks(world, layout, from_deferred_start(engine, world, layout), optimizer)
    assert_parity(candidate, train_on_one_card(world, optimizer), ledger[layout.tolerance])


@contract("IW-2-01")
@each_layout
@pytest.mark.parametrize("broadcast", [False, True], ids=["on_every_rank", "from_rank_0"])
def test_a_full_state_dict_loads_into_a_deferred_model(engine, world, ledger, layout, broadcast):
    """Whole tensors become this rank's parts, and training follows the card that they come from."""
    model = layout.divide(engine, world, deferred(engine, make_untied))
    state = started(make_untied, world.device).state_dict() if world.rank == 0 or not broadcast else {}
    options = engine.StateDictOptions(full_state_dict=True, broadcast_from_rank0=broadcast)
    engine.set_model_state_dict(model, state, options=options)
    candidate = train_on_ranks(world, layout, model, OPTIMIZERS["sgd_momentum"])
    assert_parity(
        candidate, train_on_one_card(world, OPTIMIZERS["sgd_momentum"], make_untied), ledger[layout.tolerance]
    )


@contract("IW-2-01")
@each_layout
@pytest.mark.parametrize("way", ["set_model_state_dict", "load_state_dict"])
def test_a_divided_state_dict_loads_into_a_deferred_model(engine, world, ledger, layout, way):
    """Each rank's parts, from a model that is divided alike, become the deferred model's."""
    source = layout.divide(engine, world, started(make_untied, world.device))
    state = engine.get_model_state_dict(source)
    model = layout.divide(engine, world, deferred(engine, make_untied))
    if way == "load_state_dict":
        model.load_state_dict(state, assign=True)
    else:
        engine.set_model_state_dict(model, state)
    assert [name for name, one in model.named_parameters() if one.is_meta] == []
    expected = dict(started(make_untied, world.device).named_parameters())
    assert_close(dict(model.named_parameters()), expected, ledger["exact"], what="parameters")

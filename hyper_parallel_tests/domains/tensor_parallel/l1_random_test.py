"""Random numbers inside divided layers: the same where ranks have the same activations, others where not."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from hyper_parallel_tests.domains.tensor_parallel.networks import divided_mlp, hidden_batches, mesh_of
from hyper_parallel_tests.harness import World, assert_differs, assert_equal, contract

SEED = 1234
SHAPE = (4, 8, 16)


@pytest.fixture(autouse=True)
def generators(engine, world):
    """One default stream for all ranks, and those of other cases left alone."""
    with torch.random.fork_rng():
        # Ranks that begin apart show whether it is seeding that brings them together.
        torch.manual_seed(world.rank)
        engine.manual_seed(SEED, mesh_of(world))
        yield


def of_all_ranks(engine: Any, world: World, own: Tensor) -> list[Tensor]:
    """What each rank has, on every rank."""
    return list(engine.from_local(own[None], mesh_of(world), [engine.Shard(0)]).full_tensor())


def assert_alike(engine: Any, world: World, own: Tensor, what: str) -> None:
    for one in of_all_ranks(engine, world, own):
        assert_equal(one, own, what=what)


def assert_apart(engine: Any, world: World, own: Tensor, exact: Any) -> None:
    """Two masks of hundreds of fair coins are the same in one of 2 ** hundreds of runs."""
    masks = of_all_ranks(engine, world, own)
    for i in range(world.size):
        for j in range(i):
            assert_differs(masks[i], masks[j], exact, what=f"mask of rank {i} and that of rank {j}")


def mask(dropped: Tensor) -> Tensor:
    return dropped.detach() != 0


@contextmanager
def own_stream(engine: Any, world: World) -> Iterator[None]:
    """As Megatron's models: a stream beside the default one for what is divided, of another seed on each rank."""
    tracker = engine.RNGStatesTracker()
    tracker.add("divided", engine.parallel_seed(SEED + 1, mesh_of(world), ("tp",)))
    with tracker.fork("divided"):
        yield


@contract("TP-1-03")
@pytest.mark.parametrize("region", ["before", "after"])
def test_replicated_activations_are_dropped_alike(engine, world, region):
    """Before the columnwise layer and after the rowwise one all ranks have one mask, step after step."""
    model = divided_mlp(engine, world)
    inputs = hidden_batches(world, 16)[0].inputs
    for _ in range(2):
        source = inputs if region == "before" else model(inputs)
        assert_alike(engine, world, mask(F.dropout(source, 0.5)), what="mask")


@contract("TP-1-03")
def test_divided_activations_are_dropped_apart(engine, world, ledger):
    """Between the layers each rank has a mask of its own, from a stream of its own."""
    layer = engine.parallelize_module(nn.Linear(16, 16 * world.size), mesh_of(world), engine.ColwiseParallel())
    inside = layer(hidden_batches(world, 16)[0].inputs)
    with own_stream(engine, world):
        assert_apart(engine, world, mask(F.dropout(inside, 0.5)), ledger["exact"])


@contract("TP-1-03")
def test_own_stream_leaves_the_default_one_alike(engine, world):
    """After a region of divided activations, replicated ones are dropped alike again, as if it had not been."""
    expected = torch.rand(SHAPE, device=world.device)
    engine.manual_seed(SEED, mesh_of(world))
    with own_stream(engine, world):
        torch.rand(3 + world.rank, device=world.device)
    found = torch.rand(SHAPE, device=world.device)
    assert_equal(found, expected, what="numbers")
    assert_alike(engine, world, found, what="numbers")


@contract("TP-1-03")
@pytest.mark.parametrize("dim", [0, 1, 2], ids=["rows", "tokens", "features"])
def test_distributed_activations_are_dropped_as_on_one_card(engine, world, dim):
    """The parts of a distributed tensor's mask make the mask of the whole, and default streams agree afterwards."""
    whole = torch.ones(SHAPE, device=world.device)
    expected = F.dropout(whole, 0.5)
    engine.manual_seed(SEED, mesh_of(world))
    divided = engine.distribute_tensor(whole, mesh_of(world), [engine.Shard(dim)])
    found = engine.distributed_dropout(divided, 0.5)
    assert tuple(found.placements) == (engine.Shard(dim),)
    assert_equal(found.full_tensor(), expected, what="dropped tensor")
    assert_alike(engine, world, torch.rand(8, device=world.device), what="numbers afterwards")


@contract("TP-1-03")
def test_dropout_layer_on_own_tokens(engine, world, ledger):
    """A dropout layer in sequence parallelism drops other places of each rank's tokens."""
    layer = engine.parallelize_module(nn.Dropout(0.5), mesh_of(world), engine.SequenceParallel(use_local_output=True))
    assert_apart(engine, world, mask(layer(torch.ones(SHAPE, device=world.device))), ledger["exact"])


@contract("TP-1-03")
def test_layers_that_draw_nothing_move_no_stream(engine, world):
    """Forward and backward of divided layers leave the default stream where it was."""
    expected = torch.rand(8, device=world.device)
    engine.manual_seed(SEED, mesh_of(world))
    model = divided_mlp(engine, world)
    engine.manual_seed(SEED, mesh_of(world))
    model(hidden_batches(world, 16)[0].inputs).sum().backward()
    assert_equal(torch.rand(8, device=world.device), expected, what="next numbers")

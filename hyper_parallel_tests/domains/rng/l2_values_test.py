"""Divided random tensors and dropout against what a single card draws."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from hyper_parallel_tests.domains.rng.streams import SEED, draw, single_card, untouched_generators
from hyper_parallel_tests.harness import World, assert_equal, contract

DRAWS = {"rand": torch.rand, "randn": torch.randn}
# Rows and columns that divide evenly over four ranks, unevenly, and with nothing left for some.
SHAPES = {"even": (8, 12), "uneven": (7, 5), "few": (1, 3)}
# Placement of the one mesh dimension.
LAYOUTS = ("replicated", "rows", "columns")


@pytest.fixture(autouse=True)
def generators():
    with untouched_generators():
        yield


def placed(engine: Any, layout: str) -> list[Any]:
    """The placements of a layout."""
    return [engine.Replicate() if layout == "replicated" else engine.Shard(LAYOUTS.index(layout) - 1)]


def own_part(world: World, whole: Tensor, layout: str) -> Tensor:
    """This rank's part of a tensor, as torch.chunk deals it out; empty where there are fewer chunks."""
    if layout == "replicated":
        return whole
    dim = LAYOUTS.index(layout) - 1
    chunks = whole.chunk(world.size, dim)
    return chunks[world.rank] if world.rank < len(chunks) else whole.narrow(dim, 0, 0)


each_draw = pytest.mark.parametrize("name", DRAWS)
each_shape = pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
each_layout = pytest.mark.parametrize("layout", LAYOUTS)


@contract("RN-2-01")
@each_draw
@each_shape
@each_layout
def test_part_is_that_of_the_single_cards_tensor(engine, world, name, shape, layout):
    """For the same seed each rank holds its part of what a card alone draws, bit for bit."""
    mesh = world.mesh(dp=world.size)
    engine.manual_seed(SEED, mesh)
    found = getattr(engine, name)(shape, device_mesh=mesh, placements=placed(engine, layout))
    whole = single_card(world, DRAWS[name], shape)
    assert_equal(found.to_local(), own_part(world, whole, layout), what="part")
    assert_equal(found.full_tensor(), whole, what="tensor")


@contract("RN-2-01")
@each_draw
@each_layout
def test_stream_goes_on_as_on_a_single_card(engine, world, name, layout):
    """After a divided tensor all ranks draw what a single card draws next: plain numbers, and the next tensor."""
    shape = SHAPES["uneven"]
    mesh = world.mesh(dp=world.size)

    def next_ones(first: Any, second: Any) -> list[Tensor]:
        first()
        return [draw(world), second()]

    with untouched_generators():
        torch.manual_seed(SEED)
        expected = next_ones(
            lambda: DRAWS[name](shape, device=world.device), lambda: torch.rand(4, 8, device=world.device)
        )
    engine.manual_seed(SEED, mesh)
    found = next_ones(
        lambda: getattr(engine, name)(shape, device_mesh=mesh, placements=placed(engine, layout)),
        lambda: engine.rand((4, 8), device_mesh=mesh, placements=placed(engine, "rows")).full_tensor(),
    )
    assert_equal(found, expected, what="drawn next")


@contract("RN-2-01")
@each_shape
@each_layout
def test_dropout(engine, world, shape, layout):
    """Output and gradient are the parts of the single card's: replicas drop the same elements, shards their own."""
    mesh = world.mesh(dp=world.size)
    whole = torch.arange(1.0, 1 + shape[0] * shape[1], device=world.device).view(shape)

    def dropped() -> tuple[Tensor, Tensor]:
        torch.manual_seed(SEED)
        leaf = whole.clone().requires_grad_()
        output = F.dropout(leaf, 0.4)
        (output * whole).sum().backward()
        return output.detach(), leaf.grad

    with untouched_generators():
        expected = [own_part(world, one, layout) for one in dropped()]
    engine.manual_seed(SEED, mesh)
    tensor = engine.distribute_tensor(whole, mesh, placed(engine, layout)).requires_grad_()
    output = engine.distributed_dropout(tensor, 0.4)
    output.to_local().backward(own_part(world, whole, layout))
    assert_equal([output.detach().to_local(), tensor.grad.to_local()], expected, what="dropout")


@contract("RN-2-01")
def test_dropout_that_drops_nothing(engine, world):
    """Without training nothing is dropped and nothing is drawn."""
    mesh = world.mesh(dp=world.size)
    engine.manual_seed(SEED, mesh)
    tensor = engine.rand((8, 4), device_mesh=mesh, placements=[engine.Shard(0)])
    before = engine.get_rng_state(mesh)
    output = engine.distributed_dropout(tensor, 0.4, training=False)
    assert_equal(output.to_local(), tensor.to_local(), what="output")
    assert_equal(engine.get_rng_state(mesh), before, what="state")


@contract("RN-2-01")
def test_dropout_of_a_partial_tensor(engine, world):
    """A tensor whose sum is outstanding is refused: a mask on its terms would not be one on the tensor."""
    mesh = world.mesh(dp=world.size)
    terms = engine.from_local(torch.ones(4, device=world.device), mesh, [engine.Partial()])
    with pytest.raises(ValueError, match="(?i)partial"):
        engine.distributed_dropout(terms)


@contract("RN-2-01")
def test_first_ranks_seed_holds_for_all(engine, world):
    """Where ranks give different seeds, all draw what the first rank's gives."""
    engine.manual_seed(SEED + world.rank, world.mesh(dp=world.size))
    assert_equal(draw(world), single_card(world, torch.rand, 5), what="numbers")


@contract("RN-2-01")
def test_stages_draw_their_own_numbers(engine, world):
    """Seeded per pipeline stage, ranks of a stage draw the same numbers, and each stage others."""
    mesh = world.mesh(pp=2, tp=world.size // 2)
    stage = world.rank // (world.size // 2)
    engine.manual_seed(engine.parallel_seed(SEED, mesh), mesh["tp"])
    assert_equal(draw(world), single_card(world, torch.rand, 5, seed=SEED + stage), what="numbers")


@contract("RN-2-01")
@each_layout
def test_resumed_stream_continues(engine, world, layout):
    """After a restart from saved states, dropout and regions go on as without it."""
    mesh = world.mesh(dp=world.size)
    tracker = engine.RNGStatesTracker()
    tracker.add("own", 100 + world.rank)
    ones = engine.distribute_tensor(torch.ones(8, 12, device=world.device), mesh, placed(engine, layout))

    def step(streams: Any) -> list[Tensor]:
        with streams.fork("own"):
            own = draw(world)
        return [own, engine.distributed_dropout(ones).to_local()]

    engine.manual_seed(SEED, mesh)
    step(tracker)
    saved = {"default": engine.get_rng_state(mesh), "streams": tracker.get_states()}
    expected = [step(tracker) for _ in range(2)]
    # A restart: another seed, a new tracker.
    engine.manual_seed(SEED + 1, mesh)
    restored = engine.RNGStatesTracker()
    restored.set_states(saved["streams"])
    engine.set_rng_state(saved["default"], mesh)
    assert_equal([step(restored) for _ in range(2)], expected, what="steps")


@contract("RN-2-01")
def test_devices_that_can_draw(engine, world):
    """The engine says that it can draw on the mesh on which it does."""
    mesh = world.mesh(dp=world.size)
    engine.rand((4, 4), device_mesh=mesh, placements=placed(engine, "rows"))
    assert engine.is_rng_supported_mesh(mesh)

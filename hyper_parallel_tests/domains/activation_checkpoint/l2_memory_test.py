"""Bytes that policies save, counted in storages: between forward and backward, and at the height of backward."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from hyper_parallel_tests.domains.activation_checkpoint.networks import (
    ADDMM,
    DEPTH,
    INNER,
    MM,
    POLICIES,
    ROWS,
    SHAPE,
    WIDTH,
    make_regions,
    network,
    through,
)
from hyper_parallel_tests.domains.activation_checkpoint.setting import REENTRANT
from hyper_parallel_tests.harness import contract, trace
from hyper_parallel_tests.models.decoder import decoder
from hyper_parallel_tests.models.seeding import generator

# A block makes its output, and saves what goes into the activation and what comes out of it.
OUTPUT, HIDDEN = trace.size_of(ROWS, WIDTH), trace.size_of(ROWS, INNER)
PLAIN, REGION = OUTPUT + 2 * HIDDEN, OUTPUT
GELU = torch.ops.aten.gelu.default

# Per operator: what is kept beside the output of the block. The second product is a term of that output.
KEPT = {
    "products": ([ADDMM], HIDDEN + OUTPUT),
    "activation": ([GELU], HIDDEN),
    "both": ([ADDMM, GELU], 2 * HIDDEN + OUTPUT),
    "nothing": ([MM], 0),
}
EVERY = {"none": 0, "every": 1, "every_second": 2, "every_third": 3, "last": DEPTH, "beyond_last": DEPTH + 1}


def blocks_of(world, depth: int = DEPTH) -> nn.ModuleList:
    """Blocks without dropout."""
    return network(world, dropout=0.0, depth=depth).blocks


def hidden(world, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=generator(0)).to(world.device).requires_grad_()


def held_between(blocks: nn.ModuleList, *inputs: Tensor) -> int:
    """Bytes that the blocks leave between forward and backward."""
    with trace.made() as made:
        output = through(blocks, *inputs)
    held = made.held()
    output.sum().backward()
    return held


@contract("AC-2-02")
@pytest.mark.parametrize("options", [{}, REENTRANT], ids=["default", "reentrant"])
@pytest.mark.parametrize("every", EVERY.values(), ids=EVERY)
def test_bytes_by_frequency(engine, world, every, options):
    """A block that is a region leaves its output, one that is none what it saves beside it."""
    blocks = blocks_of(world)
    make_regions(engine, blocks, every, **options)
    regions = DEPTH // every if every else 0
    assert held_between(blocks, hidden(world, ROWS, WIDTH)) == regions * REGION + (DEPTH - regions) * PLAIN


@contract("AC-2-02")
@pytest.mark.parametrize(("listed", "kept"), KEPT.values(), ids=KEPT)
def test_bytes_by_operator(engine, world, listed, kept):
    """A block that keeps some operators' outputs leaves these and its own."""
    blocks = blocks_of(world)
    make_regions(engine, blocks, 1, policy_fn=listed)
    assert held_between(blocks, hidden(world, ROWS, WIDTH)) == DEPTH * (REGION + kept)


@contract("AC-2-02")
@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"mode": "none"}, DEPTH * PLAIN),
        ({"mode": "full"}, DEPTH * REGION),
        ({"selective_ac_option": "2"}, DEPTH // 2 * (REGION + PLAIN)),
        ({"selective_ac_option": "op", "op_sac_save_list": ["aten.gelu.default"]}, DEPTH * (REGION + HIDDEN)),
    ],
    ids=["none", "full", "every_second", "operators"],
)
def test_bytes_by_policy_as_written(engine, world, fields, expected):
    """So do the blocks of a policy as users write it."""
    blocks = blocks_of(world)
    engine.apply_ac(blocks, engine.ActivationCheckpointConfig(**fields))
    assert held_between(blocks, hidden(world, ROWS, WIDTH)) == expected


@contract("AC-2-02")
@pytest.mark.parametrize("every", [1, 2], ids=["every", "every_second"])
def test_next_step_holds_the_same(engine, world, every):
    """A second and a third step leave between forward and backward what the first one left."""
    blocks = blocks_of(world)
    make_regions(engine, blocks, every)
    held = [held_between(blocks, hidden(world, ROWS, WIDTH)) for _ in range(3)]
    assert held == [held[0]] * 3


def most(blocks: nn.ModuleList, inputs: Tensor) -> int:
    """The most bytes that are held at once in a step. Gradients are there before, so that they do not count."""
    for param in (*blocks.parameters(), inputs):
        param.grad = torch.zeros_like(param)
    with trace.made() as made:
        through(blocks, inputs).sum().backward()
    return made.most


# What one block more adds to the height of a step: with regions no more than it leaves between forward and backward.
HEIGHTS: dict[str, tuple[int, dict[str, Any], int]] = {
    name: (*POLICIES[name], size)
    for name, size in {
        "none": PLAIN,
        "full": REGION,
        "full_reentrant": REGION,
        "operators": REGION + KEPT["products"][1],
    }.items()
}


@contract("AC-2-02")
@pytest.mark.parametrize(("every", "options", "expected"), HEIGHTS.values(), ids=HEIGHTS)
def test_height_of_a_step(engine, world, every, options, expected):
    """One block more makes the most that a step holds larger by what the policy leaves: only one region is whole."""

    def height(depth: int) -> int:
        blocks = blocks_of(world, depth)
        make_regions(engine, blocks, every, **options)
        return most(blocks, hidden(world, ROWS, WIDTH))

    assert height(DEPTH + 1) - height(DEPTH) == expected


STREAM = trace.size_of(2, SHAPE.seq, SHAPE.hidden)
KEYS = trace.size_of(2, SHAPE.seq, SHAPE.kv_heads * SHAPE.head_width)
INSIDE = trace.size_of(2, SHAPE.seq, SHAPE.ffn)


@contract("AC-2-02")
@pytest.mark.parametrize(
    ("options", "per_block"),
    # Products: queries, output projection and `down`, as wide as the stream; keys and values; `gate` and `up`.
    [({}, STREAM), (REENTRANT, STREAM), ({"policy_fn": [MM]}, STREAM + 3 * STREAM + 2 * KEYS + 2 * INSIDE)],
    ids=["full", "reentrant", "products"],
)
def test_bytes_of_a_decoder(engine, world, options, per_block):
    """Blocks of a decoder that are regions leave the residual stream, and the products if these are kept."""
    blocks = decoder(SHAPE).to(world.device).blocks
    make_regions(engine, blocks, 1, **options)
    positions = torch.arange(SHAPE.seq, device=world.device)
    assert held_between(blocks, hidden(world, 2, SHAPE.seq, SHAPE.hidden), positions) == SHAPE.layers * per_block

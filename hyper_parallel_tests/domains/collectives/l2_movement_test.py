"""Values of the collectives that move data: every dtype, sizes even, uneven and empty."""

from __future__ import annotations

import pytest
import torch

from hyper_parallel_tests.domains.collectives.samples import DTYPES, empty_like_payload, payload
from hyper_parallel_tests.harness import assert_equal, contract

SHAPES = {"matrix": (5, 7), "scalar": (), "empty": (0, 3)}
ROWS_OF_RANK = {
    "even": lambda rank: 3,
    "uneven": lambda rank: 1 + (2 * rank) % 5,
    "empty-part": lambda rank: rank,
}
ROWS_BETWEEN = {
    "even": lambda sender, receiver: 2,
    "uneven": lambda sender, receiver: 1 + (sender + 2 * receiver) % 3,
    "zero-size": lambda sender, receiver: (sender + receiver) % 2,
    "one-receiver": lambda sender, receiver: 0 if receiver else 1 + sender,
    "all-empty": lambda sender, receiver: 0,
}
"""Rows that a sender has for a receiver in an all-to-all."""

every_dtype = pytest.mark.parametrize("dtype", DTYPES)
from_each_end = pytest.mark.parametrize("root", ["first", "last"])


def rank_of(root: str, world) -> int:
    return 0 if root == "first" else world.size - 1


@contract("COL-2-01")
@every_dtype
@pytest.mark.parametrize("rows", ROWS_OF_RANK)
def test_all_gather(engine, world, dtype, rows):
    """Every rank ends with all ranks' tensors in rank order, whether they are of one size or not."""
    shapes = [(ROWS_OF_RANK[rows](rank), 4) for rank in range(world.size)]
    parts = [empty_like_payload(world, shape, dtype) for shape in shapes]
    engine.all_gather(parts, payload(world, world.rank, shapes[world.rank], dtype))
    for rank, part in enumerate(parts):
        assert_equal(part, payload(world, rank, shapes[rank], dtype), what=f"part of rank {rank}")


@contract("COL-2-01")
@every_dtype
@pytest.mark.parametrize("shape", ["matrix", "empty"])
def test_all_gather_into_one_tensor(engine, world, dtype, shape):
    """Every rank ends with all ranks' tensors in rank order along dimension 0 of one tensor."""
    rows, columns = SHAPES[shape]
    output = empty_like_payload(world, (rows * world.size, columns), dtype)
    engine.all_gather_into_tensor(output, payload(world, world.rank, (rows, columns), dtype))
    expected = torch.cat([payload(world, rank, (rows, columns), dtype) for rank in range(world.size)])
    assert_equal(output, expected, what="output")


@contract("COL-2-01")
@every_dtype
@pytest.mark.parametrize("rows", ROWS_BETWEEN)
def test_all_to_all(engine, world, dtype, rows):
    """Each rank ends with what every rank had for it."""

    def sent(sender: int, receiver: int) -> torch.Tensor:
        return payload(world, sender, (ROWS_BETWEEN[rows](sender, receiver), 3), dtype, seed=receiver)

    peers = range(world.size)
    outputs = [empty_like_payload(world, sent(peer, world.rank).shape, dtype) for peer in peers]
    engine.all_to_all(outputs, [sent(world.rank, peer) for peer in peers])
    for peer in peers:
        assert_equal(outputs[peer], sent(peer, world.rank), what=f"part from rank {peer}")


@contract("COL-2-01")
@every_dtype
@pytest.mark.parametrize("rows", ROWS_BETWEEN)
def test_all_to_all_of_one_tensor(engine, world, dtype, rows):
    """Each rank ends with the parts along dimension 0 that every rank had for it, in rank order."""
    peers = range(world.size)
    sent = [[ROWS_BETWEEN[rows](sender, receiver) for receiver in peers] for sender in peers]
    received = [sent[sender][world.rank] for sender in peers]
    inputs = [payload(world, sender, (sum(sent[sender]), 3), dtype) for sender in peers]
    output = empty_like_payload(world, (sum(received), 3), dtype)
    sizes = (None, None) if rows == "even" else (received, sent[world.rank])
    engine.all_to_all_single(output, inputs[world.rank], *sizes)
    expected = torch.cat([inputs[sender].split(sent[sender])[world.rank] for sender in peers])
    assert_equal(output, expected, what="output")


@contract("COL-2-01")
@every_dtype
@from_each_end
@pytest.mark.parametrize("shape", SHAPES)
def test_broadcast(engine, world, dtype, shape, root):
    """Every rank ends with the source's tensor."""
    source = rank_of(root, world)
    tensor = payload(world, world.rank, SHAPES[shape], dtype)
    engine.broadcast(tensor, source)
    assert_equal(tensor, payload(world, source, SHAPES[shape], dtype), what="tensor")


@contract("COL-2-01")
@every_dtype
@from_each_end
@pytest.mark.parametrize("shape", SHAPES)
def test_gather(engine, world, dtype, shape, root):
    """The destination ends with all ranks' tensors in rank order."""
    destination = rank_of(root, world)
    parts = None
    if world.rank == destination:
        parts = [empty_like_payload(world, SHAPES[shape], dtype) for _ in range(world.size)]
    engine.gather(payload(world, world.rank, SHAPES[shape], dtype), parts, destination)
    for rank, part in enumerate(parts or []):
        assert_equal(part, payload(world, rank, SHAPES[shape], dtype), what=f"part of rank {rank}")


@contract("COL-2-01")
@every_dtype
@from_each_end
@pytest.mark.parametrize("shape", SHAPES)
def test_scatter(engine, world, dtype, shape, root):
    """Each rank ends with the part that the source had for it."""
    source = rank_of(root, world)
    parts = [payload(world, source, SHAPES[shape], dtype, seed=rank) for rank in range(world.size)]
    tensor = empty_like_payload(world, SHAPES[shape], dtype)
    engine.scatter(tensor, parts if world.rank == source else None, source)
    assert_equal(tensor, parts[world.rank], what="tensor")

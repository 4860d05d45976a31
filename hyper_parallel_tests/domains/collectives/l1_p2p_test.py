"""Messages between two ranks."""

from __future__ import annotations

import pytest
import torch

from hyper_parallel_tests.harness import assert_equal, contract

ELEMENTS = 64
# Larger than any socket's buffer: a send cannot end before the receiver reads.
MANY_ELEMENTS = 2 * 1024 * 1024


def message(world, value: float, elements: int = ELEMENTS) -> torch.Tensor:
    return torch.full((elements,), value, device=world.device)


@contract("COL-1-03")
def test_messages_of_one_source_arrive_in_order(engine, world):
    """The n-th receive from a rank gets the n-th message of that rank."""
    if world.rank == 0:
        for value in range(5):
            engine.send(message(world, value), dst=world.size - 1)
    if world.rank == world.size - 1:
        for value in range(5):
            received = message(world, -1)
            engine.recv(received, src=0)
            assert_equal(received, message(world, value), what="message")


@contract("COL-1-03")
def test_messages_match_their_source(engine, world):
    """A receive gets the message of the source that it names, in whatever order the messages came."""
    if world.rank != 0:
        engine.send(message(world, world.rank), dst=0)
        return
    for source in reversed(range(1, world.size)):
        received = message(world, -1)
        engine.recv(received, src=source)
        assert_equal(received, message(world, source), what="message")


@contract("COL-1-03")
def test_receives_complete_in_any_wait_order(engine, world):
    """Receives get the messages in the order of their start, also when waited for from last to first."""
    after, before = (world.rank + 1) % world.size, (world.rank - 1) % world.size
    received = [message(world, -1) for _ in range(3)]
    receives = [engine.irecv(tensor, src=before) for tensor in received]
    sends = [engine.isend(message(world, 10 * world.rank + index), dst=after) for index in range(3)]
    for handle in (*reversed(receives), *sends):
        handle.wait()
    assert [tensor[0].item() for tensor in received] == [10 * before + index for index in range(3)]


@contract("COL-1-03")
@pytest.mark.parametrize("listed", ["send-first", "receive-first"])
@pytest.mark.parametrize("step", [1, -1], ids=["forward", "backward"])
def test_batched_ring(engine, world, step, listed):
    """All ranks passing a large message round the ring in one batch do not deadlock, in either direction."""
    after, before = (world.rank + step) % world.size, (world.rank - step) % world.size
    received = message(world, -1, MANY_ELEMENTS)
    batch = [("send", message(world, world.rank, MANY_ELEMENTS), after), ("recv", received, before)]
    for handle in engine.batch_isend_irecv(batch if listed == "send-first" else batch[::-1]):
        handle.wait()
    assert_equal(received, message(world, before, MANY_ELEMENTS), what="message")


@contract("COL-1-03")
def test_batched_exchange_in_both_directions(engine, world):
    """One batch with both neighbours, two messages each way, keeps sources and orders apart."""
    after, before = (world.rank + 1) % world.size, (world.rank - 1) % world.size
    from_before, from_after = message(world, -1), message(world, -1)
    batch = [
        ("send", message(world, 100 + world.rank), after),
        ("recv", from_before, before),
        ("send", message(world, 200 + world.rank), before),
        ("recv", from_after, after),
    ]
    for handle in engine.batch_isend_irecv(batch):
        handle.wait()
    assert_equal(from_before, message(world, 100 + before), what="message from the rank before")
    assert_equal(from_after, message(world, 200 + after), what="message from the rank after")

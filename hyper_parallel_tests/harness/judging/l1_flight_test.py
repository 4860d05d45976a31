"""The pending collectives of real ranks."""

from __future__ import annotations

import threading
import time

import torch
import torch.distributed as dist

from hyper_parallel_tests.harness.judging.flight import last_collectives


def test_a_collective_is_pending_until_the_peers_join(world):
    """Rank 0's collective is pending while it is alone in it and done once all have joined."""
    start, everyone = time.time_ns(), tuple(range(world.size))
    others = range(1, world.size)
    if world.rank == 0:
        work = dist.all_reduce(torch.ones(3), async_op=True)
        (line,) = last_collectives(since_ns=start)
        for other in others:
            dist.send(torch.ones(1), other)
        work.wait()
        assert line.startswith("all_reduce #")
        assert f"of default_pg {everyone}: float32[3] -> float32[3]: PENDING for " in line
    else:
        dist.recv(torch.ones(1), 0)
        dist.all_reduce(torch.ones(3))
    dist.barrier()
    # torch notes the end on a thread of its own, maybe after wait() has returned; the case's watchdog bounds this.
    while not (line := last_collectives(since_ns=start)[0]).endswith(": done"):
        threading.Event().wait(0.001)
    assert line.startswith("all_reduce #")


def test_a_receive_without_a_send_is_told_by_its_call(world):
    """gloo's recorder holds no transfers: the call that the receiving thread is in is told instead."""
    if world.rank == 0:
        thread = threading.Thread(target=dist.recv, args=(torch.ones(2), 1), name="receiver")
        thread.start()
        while not (lines := [line for line in last_collectives() if line.startswith("receiver is inside recv")]):
            thread.join(0.001)
        dist.send(torch.ones(1), 1)
        thread.join()
        assert "recv(tensor=float32[2], src=1, tag=0) at threading.py:" in lines[0]
    elif world.rank == 1:
        dist.recv(torch.ones(1), 0)
        dist.send(torch.ones(2), 0)
        assert not any("recv" in line for line in last_collectives())

"""What a dry run says of each layout of four ranks, beside what they really hold in it."""

from __future__ import annotations

from hyper_parallel_tests.domains.monitor.memory import check_memory
from hyper_parallel_tests.harness import contract


@contract("MO-2-02")
def test_estimate_is_what_ranks_hold(engine, world, artifacts):
    """Parameters, gradients, states and activations take on each rank the bytes that a dry run of it says."""
    # It has a block without experts too.
    check_memory(engine, world, artifacts, "moe")

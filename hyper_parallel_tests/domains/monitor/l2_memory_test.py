"""What a dry run says of each layout of two ranks, beside what they really hold in it."""

from __future__ import annotations

import pytest

from hyper_parallel_tests.domains.monitor.memory import check_memory
from hyper_parallel_tests.domains.monitor.programs import MODELS
from hyper_parallel_tests.harness import contract


@contract("MO-2-02")
@pytest.mark.parametrize("model", MODELS)
def test_estimate_is_what_ranks_hold(engine, world, artifacts, model):
    """Parameters, gradients, states and activations take on each rank the bytes that a dry run of it says."""
    check_memory(engine, world, artifacts, model)

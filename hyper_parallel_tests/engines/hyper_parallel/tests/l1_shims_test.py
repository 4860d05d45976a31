"""Each shim is needed on the CPU, and changes no value."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from hyper_parallel_tests.engines.hyper_parallel import shims
from hyper_parallel_tests.harness import assert_equal


def gradients(engine, world, **options) -> dict[str, Tensor]:
    """This rank's gradients of two layers, each wrapped by itself, after one step on rows of its own."""
    torch.manual_seed(0)
    layers = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    for layer in layers:
        engine.fully_shard(layer, mesh=world.mesh(dp=world.size), **options)
    layers(torch.randn(3, 4, generator=world.generator(world.rank))).square().sum().backward()
    return {one.name: one.grad for one in engine.managed_parameters(layers)}


# A backward that fails leaves the library in the middle of it, for every module of the process.
@pytest.mark.own_process_group
def test_gather_that_autograd_sees_is_refused(engine, world):
    """Without the shim backward finds what forward saved overwritten by the second gather."""
    with shims.uncounted_gather.lifted(), pytest.raises(RuntimeError, match="modified by an inplace operation"):
        gradients(engine, world, reshard_after_forward=True)


def test_gather_that_autograd_does_not_see_changes_no_value(engine, world):
    """With the shim the gradients are those of parameters that are gathered once, which need no shim."""
    shimmed = gradients(engine, world, reshard_after_forward=True)
    with shims.uncounted_gather.lifted():
        assert_equal(shimmed, gradients(engine, world, reshard_after_forward=False), what="gradients")


@pytest.mark.own_process_group
def test_stream_of_the_cpu_is_refused(engine, world):
    """Without the shim a backward with offload ends with the search for a stream that the CPU does not have."""
    offload = engine.CPUOffloadPolicy(pin_memory=False)
    with (
        shims.offload_without_stream.lifted(),
        pytest.raises(NotImplementedError, match="Unsupported device type cpu"),
    ):
        gradients(engine, world, offload_policy=offload)


@pytest.mark.parametrize("offloaded", [True, False], ids=["offload", "no_offload"])
def test_offload_without_stream_changes_no_value(engine, world, offloaded):
    """With the shim gradients are those without it where nothing is moved, with offload and without."""
    options = {"offload_policy": engine.CPUOffloadPolicy(pin_memory=False)} if offloaded else {}
    with shims.offload_without_stream.lifted():
        unmoved = gradients(engine, world)
    assert_equal(gradients(engine, world, **options), unmoved, what="gradients")

"""What stands for streams on the CPU is needed to move groups there, and changes no value."""

from __future__ import annotations

import sys
from unittest import mock

import pytest
import torch
from torch import Tensor, nn

from hyper_parallel_tests.engines.hyper_parallel.library import platform
from hyper_parallel_tests.harness import assert_equal


def gradient(engine, *, moved: bool) -> Tensor:
    """Of a swapped layer's input, whose group has been moved or not."""
    manager = engine.SwapManager()
    inputs = torch.arange(3.0, requires_grad=True)
    manager.set_current_group_name("tanh")
    output = engine.swap_wrapper(nn.Tanh())(inputs)
    manager.set_current_group_name("")
    if moved:
        for move in (manager.launch_offload, manager.wait_offload, manager.launch_load, manager.wait_load):
            move("tanh")
    output.sum().backward()
    return inputs.grad


def test_streams_of_the_cpu_are_refused(engine):
    """Without it a group's first move ends with the search for streams that the CPU does not have."""
    module = sys.modules[engine.SwapManager.__module__]
    with mock.patch.object(module, "platform", platform()), pytest.raises(Exception, match="(?i)cuda|npu"):
        gradient(engine, moved=True)


def test_streams_change_no_value(engine):
    """With it gradients are those of a group that is not moved."""
    assert_equal(gradient(engine, moved=True), gradient(engine, moved=False), what="gradient")

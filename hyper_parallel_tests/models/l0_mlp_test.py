"""The multi-layer perceptron."""

from __future__ import annotations

import pytest
import torch

from hyper_parallel_tests.harness.judging.parity import assert_close
from hyper_parallel_tests.harness.judging.tolerances import ledger
from hyper_parallel_tests.models.mlp import mlp, mlp_batch, mlp_loss


def test_shapes_and_names():
    """One weight and one bias a layer, under the names that the docstring gives."""
    shapes = {name: tuple(param.shape) for name, param in mlp(width=5, depth=2).named_parameters()}
    assert shapes == {
        "layers.0.weight": (5, 5),
        "layers.0.bias": (5,),
        "layers.1.weight": (5, 5),
        "layers.1.bias": (5,),
    }
    assert [name for name, _ in mlp(depth=1, bias=False).named_parameters()] == ["layers.0.weight"]


def test_forward_is_the_formula():
    """Linear, tanh, linear, in this order."""
    model, inputs = mlp(width=4, depth=2), mlp_batch(0, width=4).inputs
    first, second = model.layers
    expected = torch.tanh(inputs @ first.weight.T + first.bias) @ second.weight.T + second.bias
    assert_close(model(inputs), expected, ledger["fsdp_1d_fp32"])


def test_loss_of_equal_parts_averages_to_the_whole():
    """The mean over ranks of the loss and of its gradients is the batch's."""
    batch = mlp_batch(0, rows=8)
    model = mlp()
    parts = torch.stack([mlp_loss(model, batch.part(rank, 4)) for rank in range(4)])
    assert_close(parts.mean(), mlp_loss(model, batch), ledger["fsdp_1d_fp32"])


def test_every_parameter_has_a_gradient_that_the_ledger_can_judge():
    """No gradient is so small that a tolerance of 1e-5 would pass zeros."""
    model = mlp()
    mlp_loss(model, mlp_batch(0)).backward()
    for name, param in model.named_parameters():
        assert param.grad.abs().max() > 100 * ledger["fsdp_1d_fp32"].tensor, name


@pytest.mark.parametrize(("width", "depth"), [(0, 1), (1, 0)])
def test_no_network_is_an_error(width, depth):
    """At least one layer of width one."""
    with pytest.raises(ValueError, match="at least one layer"):
        mlp(width=width, depth=depth)

"""The factor on reduced gradients: when it is read, and what is one."""

from __future__ import annotations

import pytest
import torch

from hyper_parallel_tests.domains.fully_shard.setting import (
    batch,
    either_fusion,
    gradients,
    loss,
    mine,
    parts,
    sharded_network,
    single_card_gradients,
)
from hyper_parallel_tests.harness import assert_close, contract


@contract("FS-1-09")
@pytest.mark.parametrize("shape", [(), (1,)], ids=["no_dimension", "one_dimension"])
@either_fusion
def test_gradient_scaling_factor_is_read_at_each_reduction(engine, world, ledger, comm_fusion, shape):
    """A tensor that is set once and changed between steps, or before a backward, scales by what it is then."""
    model, rows = sharded_network(engine, world, comm_fusion=comm_fusion), batch(world)
    factor = torch.ones(shape, device=world.device)
    model.set_gradient_scaling_factor(factor)
    for number in (0.5, 2.0, 0.25):
        model.zero_grad()
        value = loss(model, mine(world, rows))
        factor.fill_(number)
        value.backward()
        scaled = {name: number * gradient for name, gradient in single_card_gradients(world, rows).items()}
        what = f"gradients times {number}"
        assert_close(gradients(engine, model), parts(world, scaled), ledger["fsdp_1d_fp32"], what=what)


@contract("FS-1-09")
@pytest.mark.parametrize("wrong", ["2", True, [2.0], torch.ones(2)], ids=["text", "flag", "list", "two_elements"])
def test_wrong_gradient_scaling_factor_is_an_error(engine, world, wrong):
    """What is neither a number nor a tensor of one element is refused."""
    with pytest.raises(ValueError, match="scaling factor"):
        sharded_network(engine, world).set_gradient_scaling_factor(wrong)

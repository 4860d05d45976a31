"""Main gradients of sharded parameters, beside a grad that is not meant."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from hyper_parallel_tests.domains.clip_grad.reference import NORM_TYPES, clipped, global_norm
from hyper_parallel_tests.domains.clip_grad.setting import (
    batch,
    gradients,
    loss,
    mine,
    network,
    sharded_network,
    shards,
    single_card_gradients,
)
from hyper_parallel_tests.harness import assert_close, contract

# Far below the network's gradient norm, so that everything is scaled.
BOUND = 0.1
# In the place of gradients, far above them, and held by bf16 as it is.
GARBAGE = 1000.0

each_norm = pytest.mark.parametrize("norm_type", NORM_TYPES)
each_stored = pytest.mark.parametrize("stored", [torch.float32, torch.bfloat16], ids=["stored_fp32", "stored_bf16"])


def after_backward(engine, world) -> nn.Module:
    """A sharded network in fp32 with its gradients."""
    model = sharded_network(engine, world)
    loss(model, mine(world, batch(world))).backward()
    return model


def with_main_grads(engine, world, stored: torch.dtype) -> nn.Module:
    """A sharded network of parameters in `stored`, with fp32 main gradients that are divided as they are."""
    model = engine.fully_shard(network(world).to(stored), mesh=world.mesh(dp=world.size))
    for one, source in zip(model.parameters(), after_backward(engine, world).parameters(), strict=True):
        one.main_grad, one.grad = source.grad, torch.full_like(one, GARBAGE)
    return model


def main_grads(model: nn.Module) -> dict[str, Tensor]:
    return {name: one.main_grad for name, one in model.named_parameters()}


@contract("CG-1-01")
@each_stored
@each_norm
def test_main_grads_of_shards_are_joined(engine, world, ledger, norm_type, stored):
    """On every rank their norm is the whole model's, they are scaled in fp32, and grad stays as it is."""
    p, reference = NORM_TYPES[norm_type], single_card_gradients(world, batch(world))
    model = with_main_grads(engine, world, stored)
    norm = engine.clip_grad_norm_(model.parameters(), BOUND, norm_type=p)
    expected = global_norm(reference.values(), p)
    assert_close(norm, expected, ledger["fsdp_1d_fp32"], what="norm")
    after = clipped(reference, expected, BOUND)
    assert_close(main_grads(model), after, ledger["fsdp_1d_fp32"], what="main gradients")
    beside = {name: torch.full_like(one, GARBAGE, dtype=stored) for name, one in reference.items()}
    assert_close(gradients(model), beside, ledger["exact"], what="grad beside main_grad")


@contract("CG-1-01")
def test_plain_main_grad_of_a_shard_is_refused(engine, world, ledger):
    """A plain tensor does not tell whose part it is: an error on each rank, and all main gradients are as they were."""
    model = after_backward(engine, world)
    parts = shards(engine, model)
    for name, one in model.named_parameters():
        one.main_grad = parts[name].clone()
    with pytest.raises(TypeError, match="main_grad.*plain tensor"):
        engine.clip_grad_norm_(model.parameters(), BOUND)
    assert_close(main_grads(model), parts, ledger["exact"], what="main gradients")

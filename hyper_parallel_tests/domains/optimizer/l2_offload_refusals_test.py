"""What cannot wait on the host, and settings that mean nothing: errors that tell it, and nothing has moved."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from hyper_parallel_tests.domains.optimizer.network import batch, loss, network
from hyper_parallel_tests.domains.optimizer.offload import all_of_them
from hyper_parallel_tests.harness import assert_close, contract


@contract("OP-2-02")
def test_divided_parameters(engine, world):
    """Shards have a policy of their own for that: an error that names the parameter and the policy."""
    model = nn.ModuleDict({"layer": nn.Linear(2, 2)})
    mesh = world.mesh(x=world.size)
    model["layer"].weight = nn.Parameter(engine.distribute_tensor(torch.ones(2, 2), mesh, [engine.Shard(0)]))
    with pytest.raises(ValueError, match=r"layer\.weight.*CPUOffloadPolicy"):
        engine.selective_offload(model, engine.AdamW(model.parameters()), parameters=all_of_them)


class Shared(nn.Module):
    """Parameters whose memory is not theirs alone."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        flat = torch.ones(4)
        first, second = {"halves": (flat[:2], flat[2:]), "same": (flat, flat), "part": (flat[1:], None)}[kind]
        self.first = nn.Parameter(first)
        self.second = None if second is None else nn.Parameter(second)


@contract("OP-2-02")
@pytest.mark.parametrize(
    ("kind", "message"),
    [("halves", "first, second"), ("same", "first, second"), ("part", "first is 12 of 16 bytes")],
    ids=["halves", "same", "part"],
)
def test_shared_memory(engine, ledger, kind, message):
    """To free one parameter's memory would take another's: an error that names them, and the values are there."""
    model = Shared(kind)
    with pytest.raises(ValueError, match=message):
        engine.selective_offload(model, engine.AdamW(model.parameters()), parameters=lambda name, _: name == "first")
    assert_close(model.first.detach(), torch.ones_like(model.first), ledger["exact"], what="parameter")


@contract("OP-2-02")
@pytest.mark.parametrize("part", ["whole", "a_layer"])
def test_offloaded_already(engine, world, ledger, part):
    """What is on the host already cannot leave the device again: an error; once it is taken off, it can."""
    model = network(device=world.device)
    optimizer = engine.AdamW(model.parameters())
    handle = engine.selective_offload(model, optimizer, parameters=all_of_them)
    other = model if part == "whole" else model.up
    with pytest.raises(ValueError, match="already"):
        engine.selective_offload(other, optimizer, parameters=all_of_them)
    handle.remove()
    again = engine.selective_offload(other, optimizer, parameters=all_of_them)
    rows, plain = batch(0).to(world.device), network(device=world.device)
    assert_close(loss(model, rows).detach(), loss(plain, rows).detach(), ledger["exact"], what="loss")
    again.remove()


@contract("OP-2-02")
@pytest.mark.parametrize("wrong", [{"swap_times": 0}, {"min_numel": -1}], ids=lambda one: next(iter(one)))
def test_wrong_settings(engine, wrong):
    """No batch and a negative size are errors."""
    with pytest.raises(ValueError, match=next(iter(wrong))):
        engine.SwapOptimizerConfig(**wrong)


@contract("OP-2-02")
def test_keys_are_a_list(engine):
    """One text would be taken for any part of it, as `exp_avg` is one of `exp_avg_sq`: an error that tells it."""
    with pytest.raises(TypeError, match="'exp_avg_sq'.*list"):
        engine.SwapOptimizerConfig(state_keys="exp_avg_sq")

"""Where backward enters a wrapped module: at any of its outputs that needs a gradient, and nowhere else."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from hyper_parallel_tests.domains.fully_shard.setting import (
    either_fusion,
    full_now,
    gradients,
    parts,
    pending_gradients,
)
from hyper_parallel_tests.harness import assert_close, contract, in_clean_process, trace, train_baseline
from hyper_parallel_tests.models.seeding import build, generator

WIDTH = 4
sgd = partial(torch.optim.SGD, lr=0.1)


@dataclass
class Pair:
    """Two outputs of a module."""

    first: Tensor
    second: Tensor


# How a module may pack two outputs, and how its user unpacks them.
PACKS = {
    "tuple": (lambda first, second: (first, second), lambda outputs: outputs),
    "dict": (
        lambda first, second: {"first": first, "second": second},
        lambda outputs: (outputs["first"], outputs["second"]),
    ),
    "nested": (
        lambda first, second: [first, {"inner": (second,)}],
        lambda outputs: (outputs[0], outputs[1]["inner"][0]),
    ),
    "dataclass": (Pair, lambda outputs: (outputs.first, outputs.second)),
    "with_what_needs_none": (
        lambda first, second: (None, first.detach(), 3, first, torch.arange(2), "text", second),
        lambda outputs: (outputs[3], outputs[6]),
    ),
}
USES = {
    "first": lambda first, second: first.sum(),
    "second": lambda first, second: second.square().sum(),
    "both": lambda first, second: (first * second).sum(),
}

each_pack = pytest.mark.parametrize("pack", PACKS)
each_use = pytest.mark.parametrize("use", USES)


class Heads(nn.Module):
    """Two linear heads on one input, whose outputs are packed in the way of that name."""

    def __init__(self, pack: str) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.pack = pack

    def forward(self, inputs: Tensor) -> Any:
        pack, _ = PACKS[self.pack]
        return pack(self.first(inputs), self.second(inputs))


def heads(world, pack: str) -> Heads:
    """The two heads, not wrapped, with the same weights each time."""
    return build(lambda: Heads(pack), seed=0).to(world.device)


def inputs(world, seed: int = 0) -> Tensor:
    """Inputs that are the same on all ranks, so that the mean gradient is a single card's."""
    return torch.randn(3, WIDTH, generator=generator(seed, "inputs")).to(world.device)


def used(model: Heads, rows: Tensor, use: str) -> Tensor:
    """A scalar of the outputs, used in the way of that name."""
    _, unpack = PACKS[model.pack]
    return USES[use](*unpack(model(rows)))


@contract("FS-1-02")
@each_pack
@each_use
@either_fusion
def test_backward_entry_gathers_once_at_each_output(engine, world, ledger, pack, use, comm_fusion):
    """A gradient at one output, at the other or at both finds full parameters, gathered once."""
    module, (_, unpack) = heads(world, pack), PACKS[pack]
    engine.fully_shard(module, mesh=world.mesh(dp=world.size), comm_fusion=comm_fusion)
    outputs = unpack(module(inputs(world)))
    found: list[tuple[str, set[str]]] = []
    for name, output in zip(("first", "second"), outputs, strict=True):
        output.register_hook(lambda _, name=name: found.append((name, full_now(engine, module))))
    with trace.collectives() as sent:
        USES[use](*outputs).backward()

    whole = train_baseline(heads(world, pack), [inputs(world)], partial(used, use=use)).steps[0].grads
    everything = {"first.weight", "first.bias", "second.weight", "second.bias"}
    reached = {name.split(".")[0] for name in whole}
    assert sorted(found) == [(name, everything) for name in sorted(reached)]
    heads_of_groups = {one.group: one.name.split(".")[0] for one in engine.managed_parameters(module)}
    reduced = [head for head in heads_of_groups.values() if comm_fusion or head in reached]
    assert sent.ops() == ["all_gather"] * len(heads_of_groups) + ["reduce_scatter"] * len(reduced)
    assert_close(gradients(engine, module), parts(world, whole), ledger["fsdp_1d_fp32"], what="gradients")
    assert full_now(engine, module) == set()


@contract("FS-1-02")
@each_pack
def test_outputs_keep_their_structure(engine, world, ledger, pack):
    """The hook leaves outputs as they are: structure, values, and which of them need a gradient."""
    module, (_, unpack) = heads(world, pack), PACKS[pack]
    engine.fully_shard(module, mesh=world.mesh(dp=world.size))
    ours, theirs = module(inputs(world)), in_clean_process(heads(world, pack), inputs(world))
    assert type(ours) is type(theirs)
    assert_close(unpack(ours), unpack(theirs), ledger["fsdp_1d_fp32"], what="outputs")
    if isinstance(ours, tuple):
        needs = [[getattr(one, "requires_grad", None) for one in outputs] for outputs in (ours, theirs)]
        assert needs[0] == needs[1]


class Branches(nn.Module):
    """A trunk, and a side branch that runs but whose output is not used, or only without its gradient."""

    def __init__(self, cut: bool) -> None:
        super().__init__()
        self.trunk, self.side = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.cut = cut

    def forward(self, inputs: Tensor) -> Tensor:
        side = self.side(inputs)
        return self.trunk(inputs + side.detach() if self.cut else inputs)


def squares(model: nn.Module, rows: Tensor) -> Tensor:
    return model(rows).square().sum()


@contract("FS-1-02")
@pytest.mark.parametrize("cut", [False, True], ids=["unused", "used_without_gradient"])
@either_fusion
def test_module_whose_output_gets_no_gradient(engine, world, ledger, cut, comm_fusion):
    """It gets no gradient, sends none, ends as shards, and the next step of all others is right."""
    plain = build(lambda: Branches(cut), seed=0).to(world.device)
    baseline = train_baseline(plain, [inputs(world, step) for step in range(2)], squares, optimizer=sgd)
    model = build(lambda: Branches(cut), seed=0).to(world.device)
    for child in (model.trunk, model.side):
        engine.fully_shard(child, mesh=world.mesh(dp=world.size), comm_fusion=comm_fusion)
    engine.fully_shard(model, mesh=world.mesh(dp=world.size))
    optimizer = sgd(model.parameters())
    for step in range(2):
        with trace.collectives() as sent:
            squares(model, inputs(world, step)).backward()
        assert len(sent.of("reduce_scatter")) == (1 if comm_fusion else 2), "those of the trunk"
        assert full_now(engine, model) == set()
        assert pending_gradients(engine, model) == {}
        expected = parts(world, baseline.steps[step].grads)
        assert sorted(expected) == ["trunk.bias", "trunk.weight"]
        assert_close(gradients(engine, model), expected, ledger["fsdp_1d_fp32"], what=f"gradients in step {step}")
        optimizer.step()
        optimizer.zero_grad()

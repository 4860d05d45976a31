"""Damage that nobody reports: one bit of one gradient on one rank, found in the step in which it flips."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from hyper_parallel_tests.harness import World, contract
from hyper_parallel_tests.models.decoder import DecoderShape, decoder, decoder_batch
from hyper_parallel_tests.models.decoder_layouts import adam, lay_out, step_of
from hyper_parallel_tests.models.seeding import generator

SHAPE = DecoderShape(vocab=16, hidden=8, layers=1, heads=2, kv_heads=2, ffn=12, seq=4, tied=False)
ROWS = 4
# Mesh dimensions, and for each rank those that hold copies of its parts of matrices.
LAYOUTS = {
    "replicas": ({"dp": 4, "fsdp": 1}, [{0, 1, 2, 3}] * 4),
    "replicas_of_shards": ({"dp": 2, "fsdp": 2}, [{0, 2}, {1, 3}, {0, 2}, {1, 3}]),
    "replicas_of_divided_layers": ({"dp": 2, "fsdp": 1, "tp": 2}, [{0, 2}, {1, 3}, {0, 2}, {1, 3}]),
}
# The lowest of the fraction, the lowest of the exponent, the sign.
BITS = {"last": 0, "exponent": 23, "sign": 31}
each_layout = pytest.mark.parametrize(("dims", "copies"), LAYOUTS.values(), ids=LAYOUTS)

optimizer = partial(adam, lr=1e-2)


class Run:
    """A decoder in training, whose gradients are looked at between backward and update."""

    def __init__(self, engine: Any, world: World, dims: dict[str, int]) -> None:
        self._engine, self._world, self._mesh = engine, world, world.mesh(**dims)
        self._laid = lay_out(engine, decoder(SHAPE).to(world.device), self._mesh)
        self._backward = step_of(engine, self._laid, self._mesh)
        self._update = optimizer(self._laid.model.parameters())
        self._steps = 0

    @property
    def model(self) -> nn.Module:
        return self._laid.model

    def step(self, damage: Any = None) -> list[Any]:
        """One step, with something done to the gradients before they are compared; what was found."""
        self._update.zero_grad()
        batch = decoder_batch(self._steps, ROWS, SHAPE).to(self._world.device)
        self._backward(self._laid.part(batch))
        if damage is not None:
            damage(self.model)
        found = self._engine.diverged_gradients(self.model, mesh=self._mesh)
        self._update.step()
        self._steps += 1
        return found


def local(tensor: Tensor) -> Tensor:
    return tensor.to_local() if hasattr(tensor, "to_local") else tensor


def flip(name: str, place: int, bit: int, model: nn.Module) -> None:
    """Flips one bit of one element of this rank's part of a gradient."""
    words = local(model.get_parameter(name).grad).view(-1).view(torch.int32)
    mask = torch.tensor([1 << bit]).to(torch.int32) if bit < 31 else torch.tensor([-(1 << 31)], dtype=torch.int32)
    words[place % len(words)] ^= mask.item()


@contract("EN-06")
@pytest.mark.steps(12, nightly=500, weekly=5000, seconds=0.2)
@each_layout
def test_no_false_alarm(engine, world, steps, dims, copies):
    """In a run without damage nothing is ever found."""
    run = Run(engine, world, dims)
    for step in range(steps):
        assert run.step() == [], f"step {step}"


@contract("EN-06")
@pytest.mark.parametrize("bit", BITS.values(), ids=BITS)
@each_layout
def test_one_bit(engine, world, dims, copies, bit):
    """One flipped bit is found in its own step: parameter and rank, or both ranks where there are two copies."""
    run = Run(engine, world, dims)
    run.step()
    source = generator(bit, "damage")
    names = [name for name, one in run.model.named_parameters() if one.ndim > 1]
    for victim in range(world.size):
        name = names[int(torch.randint(len(names), (), generator=source))]
        place = int(torch.randint(1 << 16, (), generator=source))
        damage = partial(flip, name, place, bit) if world.rank == victim else None
        found = run.step(damage)
        suspects = (victim,) if len(copies[victim]) > 2 else tuple(sorted(copies[victim]))
        assert [(one.name, one.ranks, one.certain) for one in found] == [(name, suspects, len(suspects) == 1)]


@contract("EN-06")
@each_layout
def test_one_bit_of_a_vector(engine, world, dims, copies):
    """One flipped bit of a parameter of one dimension is found: all ranks that do not shard it hold a copy."""
    run, victim = Run(engine, world, dims), world.size - 1
    found = run.step(partial(flip, "norm.weight", 1, BITS["last"]) if world.rank == victim else None)
    held = copies[victim] if dims["fsdp"] > 1 else range(world.size)
    suspects = (victim,) if len(held) > 2 else tuple(sorted(held))
    assert [(one.name, one.ranks, one.certain) for one in found] == [("norm.weight", suspects, len(suspects) == 1)]


@contract("EN-06")
def test_missing_gradient(engine, world):
    """A rank without a gradient differs from others whose gradient is zero."""
    victim = world.size - 1

    def damage(model: nn.Module) -> None:
        weight = model.get_parameter("output.weight")
        if world.rank == victim:
            weight.grad = None
        else:
            weight.grad.zero_()

    found = Run(engine, world, LAYOUTS["replicas"][0]).step(damage)
    assert [(one.name, one.ranks, one.certain) for one in found] == [("output.weight", (victim,), True)]

"""Pipelines of some of the ranks, beside others: data parallelism over pipelines."""

from __future__ import annotations

from typing import Any

import pytest
from torch import Tensor, nn

from hyper_parallel_tests.domains.pipeline_parallel.networks import Part, batches, whole_network
from hyper_parallel_tests.harness import World, assert_close, contract, in_clean_process
from hyper_parallel_tests.models.mlp import mlp_loss
from hyper_parallel_tests.models.seeding import Batch

MICRO_BATCHES = 4
each_member = pytest.mark.parametrize("member", ["ScheduleGPipe", "Schedule1F1B"])


class Beside:
    """One rank's side of one of two pipelines of two stages, whose layers share their weight."""

    def __init__(self, engine: Any, world: World, member: str) -> None:
        mesh = world.mesh(dp=2, pp=2)
        self.number, self._place = mesh.get_local_rank("dp"), mesh.get_local_rank("pp")
        self.part = Part(whole_network(world, 2), range(self._place, self._place + 1), share=1 / MICRO_BATCHES)
        shared = engine.SharedParameterInfo(self.part.layers[str(self._place)].weight, [0, 1])
        group = mesh["pp"].get_group()
        stage = engine.PipelineStage(self.part, self._place, 2, world.device, group, shared_parameters=shared)
        self._schedule = getattr(engine, member)(stage, MICRO_BATCHES)
        self.batch = batches(world)[self.number]

    @property
    def is_first(self) -> bool:
        return self._place == 0

    def run(self) -> None:
        named = {} if self.is_first else {"targets": self.batch.targets}
        self._schedule.run(*([self.batch.inputs] if self.is_first else []), **named)

    def gradients(self) -> dict[str, Tensor]:
        return {name: one.grad for name, one in self.part.named_parameters()}


def gradients_of_tied(model: nn.Module, batch: Batch) -> dict[str, Tensor]:
    """On a single card, with one weight for both layers, under the names of both."""
    model.layers[1].weight = model.layers[0].weight
    mlp_loss(model, batch).backward()
    return {name: one.grad for name, one in model.named_parameters(remove_duplicate=False)}


def assert_learns(side: Beside, world: World, ledger: Any) -> None:
    expected = in_clean_process(gradients_of_tied, whole_network(world, 2), side.batch)
    found = side.gradients()
    assert_close(found, {name: expected[name] for name in found}, ledger["pp_fp32"], what="gradients")


@contract("PP-1-03")
@each_member
def test_two_pipelines(engine, world, ledger, member):
    """Each learns from its own batch as a single card does, and shares its weights within itself alone."""
    side = Beside(engine, world, member)
    side.run()
    assert_learns(side, world, ledger)


@contract("PP-1-04")
@pytest.mark.watchdog(10)
@each_member
def test_an_error_of_one_pipeline(engine, world, ledger, member):
    """A stage that raises ends the run of its own pipeline on all ranks, and of no other."""
    side = Beside(engine, world, member)

    def refuse(*_: Any) -> None:
        raise RuntimeError("this batch is bad")

    if side.number == 0 and side.is_first:
        side.part.register_forward_pre_hook(refuse)
    if side.number == 0:
        with pytest.raises((RuntimeError, ValueError), match="(?s)stage 0.*this batch is bad"):
            side.run()
        return
    try:
        side.run()
    except (RuntimeError, ValueError) as error:
        pytest.fail(f"the error of another pipeline ends this one: {error}")
    assert_learns(side, world, ledger)

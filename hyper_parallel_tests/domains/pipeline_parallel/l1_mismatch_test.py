"""Stages that do not fit together, and stages that raise: an error on every rank, and no hang."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from hyper_parallel_tests.domains.pipeline_parallel.kinds import KINDS
from hyper_parallel_tests.domains.pipeline_parallel.networks import Part, batches, whole_network
from hyper_parallel_tests.domains.pipeline_parallel.setting import Pipeline, group_of, pipeline
from hyper_parallel_tests.harness import World, assert_close, contract, train_baseline
from hyper_parallel_tests.models.mlp import mlp_loss
from hyper_parallel_tests.models.seeding import Batch

# A case takes a second: whoever still waits after this many does so for ever.
promptly = pytest.mark.watchdog(10)
each_kind = pytest.mark.parametrize(
    "kind", [KINDS[one] for one in ("1f1b", "interleaved")], ids=["1f1b", "interleaved"]
)

errors = (RuntimeError, ValueError)


def assert_trains(piped: Pipeline, world: World, stage_num: int, ledger: Any) -> None:
    """A pass after the error, from gradients that are none, is a single card's."""
    for module in piped.modules.values():
        module.zero_grad()
    batch = batches(world)[0]
    try:
        piped.run(batch)
    except errors as error:
        pytest.fail(f"a run after one with an error raises too: {error}")
    baseline = train_baseline(whole_network(world, stage_num), [batch], mlp_loss).steps[0].grads
    expected = {name.replace("part.", ""): one for name, one in piped.gradients().items()}
    assert_close(expected, {name: baseline[name] for name in expected}, ledger["pp_fp32"], what="gradients")


class Faulty(nn.Module):
    """A stage that raises in one micro-batch of the runs for which it is told to."""

    def __init__(self, part: Part) -> None:
        super().__init__()
        self.part, self.raises, self._passes = part, "", 0

    def fail_in(self, way: str) -> None:
        self.raises, self._passes = way, 0

    def forward(self, inputs: Tensor, targets: Tensor | None = None) -> Tensor:
        self._passes += 1
        second = self._passes == 2
        if self.raises == "forward" and second:
            raise RuntimeError("the second micro-batch is bad")
        outputs = self.part(inputs, targets)
        return _Bad.apply(outputs) if self.raises == "backward" and second else outputs


class _Bad(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, outputs: Tensor) -> Tensor:
        return outputs.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        raise RuntimeError("the second micro-batch is bad")


@contract("PP-1-04")
@promptly
@each_kind
def test_shapes_at_a_boundary(engine, world, artifacts, kind):
    """Where a stage cannot take what the one before gives, all ranks get an error that names it."""
    stage_num, own = kind.stage_num(world.size), kind.stages_of(world.rank, world.size)
    modules = [Part(whole_network(world, stage_num), range(index, index + 1), share=1 / 4) for index in own]
    for index, module in zip(own, modules, strict=True):
        if index == 1:
            module.layers["1"] = nn.Linear(3, 8).to(world.device)
    piped = pipeline(engine, world, kind, artifacts, modules=modules)
    with pytest.raises(errors, match="stage 1"):
        piped.run(batches(world)[0])


@contract("PP-1-04")
@promptly
@each_kind
def test_numbers_of_micro_batches(engine, world, artifacts, kind):
    """Where ranks have different numbers of micro-batches, all of them get an error that says so."""
    piped = pipeline(engine, world, kind, artifacts, micro_batches=4 if world.rank else 8)
    with pytest.raises(errors, match="(?s)8 micro-batches.*4 micro-batches"):
        piped.run(batches(world)[0])


@contract("PP-1-04")
@promptly
def test_different_schedules(engine, world, artifacts):
    """Where ranks have different schedules, all of them get an error that names both."""
    piped = pipeline(engine, world, KINDS["gpipe"] if world.rank else KINDS["1f1b"], artifacts)
    with pytest.raises(errors, match="(?s)1F1B.*GPipe"):
        piped.run(batches(world)[0])


@contract("PP-1-04")
@promptly
def test_a_stage_that_two_ranks_have(engine, world):
    """Where each rank says that it has the first stage, all of them get an error that says so."""
    part = Part(whole_network(world, world.size), range(1), share=1 / 4)
    stage = engine.PipelineStage(part, 0, world.size, device=world.device, group=group_of(world))
    with pytest.raises(errors, match="stage 0"):
        engine.ScheduleGPipe(stage, 4).run(batches(world)[0].inputs)


@contract("PP-1-04")
@promptly
def test_one_rank_evaluates(engine, world, artifacts):
    """Where one rank evaluates and the others train, all of them get an error that says so."""
    piped = pipeline(engine, world, KINDS["1f1b"], artifacts)
    with pytest.raises(errors, match="evaluation"), torch.set_grad_enabled(world.rank > 0):
        piped.run(batches(world)[0])


@contract("PP-1-04")
@promptly
@each_kind
@pytest.mark.parametrize("way", ["forward", "backward"])
@pytest.mark.parametrize("guilty", ["first_stage", "last_stage"])
def test_a_stage_that_raises(engine, world, artifacts, ledger, kind, way, guilty):
    """All ranks get the error of a stage in the middle of a run, and then a run without it is right."""
    stage_num, own = kind.stage_num(world.size), kind.stages_of(world.rank, world.size)
    whole = whole_network(world, stage_num)
    modules = [Faulty(Part(whole, range(index, index + 1), share=1 / 4)) for index in own]
    bad = 0 if guilty == "first_stage" else stage_num - 1
    piped = pipeline(engine, world, kind, artifacts, modules=modules)
    piped.run(batches(world)[0])
    if bad in piped.modules:
        piped.modules[bad].fail_in(way)
    with pytest.raises(errors, match=f"(?s)stage {bad}.*the second micro-batch is bad"):
        piped.run(batches(world)[0])
    if bad in piped.modules:
        piped.modules[bad].fail_in("")
    assert_trains(piped, world, stage_num, ledger)


@contract("PP-1-04")
@promptly
@each_kind
def test_shapes_of_another_run(engine, world, artifacts, ledger, kind):
    """Shapes other than those of the first run are an error on all ranks, where stages are not for such."""
    piped = pipeline(engine, world, kind, artifacts)
    piped.run(batches(world, rows=8)[0])
    with pytest.raises(errors, match="dyn_shape"):
        piped.run(batches(world, rows=16)[0])
    assert_trains(piped, world, kind.stage_num(world.size), ledger)


@contract("PP-1-04")
@promptly
@each_kind
def test_rows_that_do_not_divide(engine, world, artifacts, ledger, kind):
    """Rows that are no multiple of the number of micro-batches are an error on all ranks."""
    piped = pipeline(engine, world, kind, artifacts)
    whole = batches(world)[0]
    with pytest.raises(errors, match="7"):
        piped.run(Batch(whole.inputs[:7], whole.targets[:7]))
    assert_trains(piped, world, kind.stage_num(world.size), ledger)

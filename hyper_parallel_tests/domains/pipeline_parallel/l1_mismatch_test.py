"""Stages that do not fit together, and stages that raise: an error on every rank, and no hang."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from hyper_parallel_tests.domains.pipeline_parallel.kinds import KINDS, Kind
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
        if self.raises == "fewer rows" and second:
            return outputs[1:]
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
def test_different_files(engine, world, artifacts):
    """Where ranks have schedules from files that differ, all of them get an error that has both orders."""
    piped = pipeline(engine, world, KINDS["csv"] if world.rank else Kind("ScheduleFromCsv"), artifacts)
    with pytest.raises(errors, match="(?s)0B3.*0I3"):
        piped.run(batches(world)[0])


@contract("PP-1-04")
@promptly
def test_numbers_of_stages(engine, world):
    """Where ranks have stages of pipelines of different lengths, all of them get an error that has both."""
    length = world.size + int(world.rank > 0)
    part = Part(whole_network(world, world.size), range(world.rank, world.rank + 1), share=1 / 4)
    stage = engine.PipelineStage(part, world.rank, length, device=world.device, group=group_of(world))
    inputs = [] if world.rank else [batches(world)[0].inputs]
    with pytest.raises(errors, match=rf"(?s)\b{world.size} stages.*\b{world.size + 1} stages"):
        engine.ScheduleGPipe(stage, 4).run(*inputs)


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
@pytest.mark.parametrize("name", ["1f1b", "interleaved", "zero_bubble_v"])
def test_stages_on_other_ranks(engine, world, artifacts, name):
    """Where ranks have each stage once, but not those of their schedule, all of them get an error that says so."""
    kind = KINDS[name]
    stage_num = kind.stage_num(world.size)
    own = kind.stages_of((world.rank + 1) % world.size, world.size)
    whole = whole_network(world, stage_num)
    stages = [
        engine.PipelineStage(
            Part(whole, range(index, index + 1), share=1 / 4), index, stage_num, world.device, group_of(world)
        )
        for index in own
    ]
    inputs = [batches(world)[0].inputs] if 0 in own else []
    with pytest.raises(errors, match="stage 0 on rank 0"):
        kind.make(engine, stages, 4, artifacts).run(*inputs)


@contract("PP-1-04")
@pytest.mark.parametrize("name", ["gpipe", "1f1b"])
@pytest.mark.parametrize(
    ("stages", "micro_batches"), [(2, 4), (0, 4), (1, 0), (1, -1)], ids=["two", "none", "no_batch", "negative"]
)
def test_what_a_schedule_takes(engine, world, name, stages, micro_batches):
    """A schedule of one stage a rank refuses two and none, and every one no micro-batches."""
    part, group = Part(whole_network(world, 2 * world.size), range(1)), group_of(world)
    own = [
        engine.PipelineStage(part, world.rank + index * world.size, 2 * world.size, world.device, group)
        for index in range(stages)
    ]
    with pytest.raises(ValueError, match=rf"{stages} stages and {micro_batches}\b"):
        getattr(engine, KINDS[name].member)(own, micro_batches)


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
@pytest.mark.parametrize("guilty", ["first_stage", "last_stage"])
def test_weights_whose_gradient_raises(engine, world, artifacts, ledger, guilty):
    """So they do where backward is in two parts, and it is the part of the weights that raises."""
    kind = KINDS["zero_bubble"]
    piped, stage_num = pipeline(engine, world, kind, artifacts), kind.stage_num(world.size)
    bad, gradients = 0 if guilty == "first_stage" else stage_num - 1, []
    piped.run(batches(world)[0])

    def refuse_the_second(gradient: Tensor) -> None:
        gradients.append(gradient)
        if len(gradients) == 2:
            raise RuntimeError("the second micro-batch is bad")

    handles = [
        one.register_hook(refuse_the_second) for name, one in piped.named_parameters() if name == f"layers.{bad}.weight"
    ]
    with pytest.raises(errors, match=f"(?s)stage {bad}.*micro-batch 1.*the second micro-batch is bad"):
        piped.run(batches(world)[0])
    for one in handles:
        one.remove()
    assert_trains(piped, world, stage_num, ledger)


@contract("PP-1-04")
@promptly
@pytest.mark.parametrize("way", ["forward", "backward"])
def test_a_stage_that_raises_in_the_first_run(engine, world, artifacts, ledger, way):
    """So they do in the first run, in which stages learn of each other, and the next run learns all of it."""
    whole = whole_network(world, world.size)
    faulty = Faulty(Part(whole, range(world.rank, world.rank + 1), share=1 / 4))
    piped = pipeline(engine, world, KINDS["1f1b"], artifacts, modules=[faulty])
    faulty.fail_in(way if piped.is_first else "")
    with pytest.raises(errors, match="(?s)stage 0.*the second micro-batch is bad"):
        piped.run(batches(world)[0])
    faulty.fail_in("")
    assert_trains(piped, world, world.size, ledger)


@contract("PP-1-04")
@promptly
@each_kind
@pytest.mark.parametrize("way", ["forward", "fewer rows"], ids=["raises", "fewer_rows"])
@pytest.mark.parametrize("training", [True, False], ids=["training", "evaluation"])
def test_a_micro_batch_unlike_the_others(engine, world, artifacts, ledger, kind, way, training):
    """Training or not, all ranks get the error of one micro-batch that raises, or that has other outputs."""
    stage_num, own = kind.stage_num(world.size), kind.stages_of(world.rank, world.size)
    modules = [Faulty(Part(whole_network(world, stage_num), range(one, one + 1), share=1 / 4)) for one in own]
    piped = pipeline(engine, world, kind, artifacts, modules=modules)
    with torch.set_grad_enabled(training):
        piped.run(batches(world)[0])
        if piped.is_first:
            piped.modules[0].fail_in(way)
        with pytest.raises(errors, match="stage 0 failed in the forward of micro-batch 1"):
            piped.run(batches(world)[0])
    if piped.is_first:
        piped.modules[0].fail_in("")
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


@contract("PP-1-04")
@promptly
def test_arguments_that_one_rank_cannot_give(engine, world, artifacts, ledger):
    """An argument that no stage can get, or that has no rows, on one rank, is an error on all ranks that names it."""
    piped, batch = pipeline(engine, world, KINDS["1f1b"], artifacts), batches(world)[0]
    inputs = [batch.inputs] if piped.is_first else []
    for name, value in (("target", batch.targets), ("temperature", torch.tensor(2.0))):
        with pytest.raises((*errors, IndexError), match=name):
            piped.schedule.run(*inputs, **({name: value} if piped.is_last else {}))
    assert_trains(piped, world, world.size, ledger)

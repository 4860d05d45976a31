"""Runs in between: evaluation, other shapes, one stage alone, arguments divided otherwise."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from hyper_parallel_tests.domains.pipeline_parallel.kinds import KINDS, each_common_kind
from hyper_parallel_tests.domains.pipeline_parallel.networks import (
    STEPS,
    Part,
    batches,
    sgd,
    whole_network,
)
from hyper_parallel_tests.domains.pipeline_parallel.setting import Pipeline, pipeline
from hyper_parallel_tests.harness import assert_close, assert_equal, assert_parity, contract, train, train_baseline
from hyper_parallel_tests.harness.judging.tolerances import Tolerance
from hyper_parallel_tests.models.mlp import mlp_loss
from hyper_parallel_tests.models.seeding import Batch


def assert_outputs(found: list[Tensor], whole: nn.Module, batch: Batch, piped: Pipeline, tolerance: Tolerance) -> None:
    """Of evaluation: the last stage has those of all micro-batches, and nothing else is left of it."""
    if piped.is_last:
        assert_close(torch.cat(found), whole(batch.inputs).detach(), tolerance, what="outputs")
        assert not any(one.requires_grad for one in found)
    else:
        assert found == []


@contract("PP-2-01")
@each_common_kind
def test_evaluation_only(engine, world, artifacts, ledger, kind):
    """Stages without a backward give the outputs of a single card, batch after batch, and no gradients."""
    piped = pipeline(engine, world, kind, artifacts, stage_options={"has_backward": False})
    whole = whole_network(world, kind.stage_num(world.size))
    for batch in batches(world):
        assert_outputs(piped.run(batch, targets=False), whole, batch, piped, ledger["pp_fp32"])
    assert piped.gradients() == {}


@contract("PP-2-01")
@each_common_kind
@pytest.mark.parametrize("way", ["no_grad", "stages_of_its_own"])
def test_evaluation_between_steps(engine, world, artifacts, ledger, kind, way):
    """Evaluation before, between and after steps changes none of them, and sees the updates."""
    piped, given = pipeline(engine, world, kind, artifacts), batches(world)
    whole = whole_network(world, kind.stage_num(world.size))
    modules = list(piped.modules.values())
    evaluated = (
        piped
        if way == "no_grad"
        else pipeline(engine, world, kind, artifacts, modules=modules, stage_options={"has_backward": False})
    )

    def loss(model: nn.Module, batch: Batch) -> Tensor:
        with torch.no_grad():
            outputs.append(evaluated.run(batch, targets=False))
        return piped.loss(model, batch)

    outputs: list[list[Tensor]] = []
    candidate = train(
        piped.model,
        given,
        loss,
        optimizer=sgd,
        backward=None,
        before_update=piped.norm,
        params=piped.named_parameters,
    )
    baseline = train_baseline(whole, given, mlp_loss, optimizer=sgd)
    assert_parity(candidate, baseline.only(piped.names()), ledger["pp_fp32"])
    assert_outputs(outputs[0], whole, given[0], piped, ledger["pp_fp32"])
    whole.load_state_dict(baseline.steps[0].params)
    assert_outputs(outputs[1], whole, given[1], piped, ledger["pp_fp32"])


@contract("PP-2-01")
@each_common_kind
def test_shapes_that_change(engine, world, artifacts, ledger, kind):
    """Stages for shapes that change train on more rows, on fewer, and on as many again."""
    piped = pipeline(engine, world, kind, artifacts, stage_options={"dyn_shape": True})
    given = [batches(world, rows=rows, steps=index + 1)[-1] for index, rows in enumerate((8, 16, 4, 4, 8))]
    baseline = train_baseline(whole_network(world, kind.stage_num(world.size)), given, mlp_loss, optimizer=sgd)
    try:
        candidate = piped.train(given, sgd)
    except (RuntimeError, ValueError) as error:
        pytest.fail(f"stages for shapes that change do not take them: {error}")
    assert_parity(candidate, baseline.only(piped.names()), ledger["pp_fp32"])


@contract("PP-2-01")
@pytest.mark.parametrize("name", ["gpipe", "1f1b"])
def test_one_stage(engine, world, artifacts, ledger, name):
    """A pipeline of one stage is accumulation over micro-batches; each rank has one by itself."""
    part = Part(whole_network(world, 2), range(2), share=1 / 4)
    group = world.mesh(dp=world.size, pp=1)["pp"].get_group()
    stage = engine.PipelineStage(part, 0, 1, device=world.device, group=group)
    schedule = getattr(engine, KINDS[name].member)(stage, 4)

    def loss(_: nn.Module, batch: Batch) -> Tensor:
        return torch.stack([one.detach() for one in schedule.run(batch.inputs, targets=batch.targets)]).sum()

    given = batches(world)
    candidate = train(part, given, loss, optimizer=sgd, backward=None)
    baseline = train_baseline(whole_network(world, 2), given, mlp_loss, optimizer=sgd)
    assert_parity(candidate, baseline, ledger["pp_fp32"])


class _Turned(nn.Module):
    """A stage whose rows are columns, those of `targets` too; the first one takes a `scale` of its features."""

    def __init__(self, part: Part) -> None:
        super().__init__()
        self.part = part

    def forward(self, inputs: Tensor, scale: Tensor | None = None, targets: Tensor | None = None) -> Tensor:
        turned = inputs.t() if scale is None else inputs.t() * scale
        outputs = self.part(turned, None if targets is None else targets.t())
        return outputs if outputs.ndim == 0 else outputs.t().contiguous()


@contract("PP-2-01")
@pytest.mark.parametrize("name", ["gpipe", "1f1b"])
def test_arguments_divided_otherwise(engine, world, artifacts, ledger, name):
    """Arguments are divided along their own dimensions, and one that is not divided goes to each micro-batch."""
    kind, batch = KINDS[name], batches(world)[0]
    whole = whole_network(world, world.size)
    part = Part(whole, range(world.rank, world.rank + 1), share=1 / 4)
    whole_scale = torch.linspace(0.5, 1.5, batch.inputs.shape[1], device=world.device)
    first, last = world.rank == 0, world.rank == world.size - 1
    columns, undivided = engine.BatchDimSpec(1), engine.BatchDimSpec(-1)
    piped = pipeline(
        engine,
        world,
        kind,
        artifacts,
        modules=[_Turned(part)],
        args_batch_dim=(columns, undivided) if first else None,
        kwargs_batch_dim={"targets": columns} if last else None,
    )
    inputs = (batch.inputs.t().contiguous(), whole_scale) if first else ()
    piped.schedule.run(*inputs, **({"targets": batch.targets.t().contiguous()} if last else {}))
    scaled = Batch(batch.inputs * whole_scale, batch.targets)
    baseline = train_baseline(whole_network(world, world.size), [scaled], mlp_loss).steps[0].grads
    own = {name: one.grad for name, one in part.named_parameters()}
    assert_close(own, {name: baseline[name] for name in own}, ledger["pp_fp32"], what="gradients")


class _Counting(nn.Module):
    """A stage that counts the micro-batches that it has seen, as batch normalisation does, after its part."""

    def __init__(self, part: Part) -> None:
        super().__init__()
        self.part = part
        self.register_buffer("seen", torch.zeros((), dtype=torch.int64))

    def forward(self, inputs: Tensor, targets: Tensor | None = None) -> Tensor:
        self.seen += 1
        return self.part(inputs, targets)


@contract("PP-2-01")
@each_common_kind
def test_statistics_of_a_stage(engine, world, artifacts, kind):
    """What a stage keeps of its inputs it keeps once for each micro-batch."""
    whole, own = whole_network(world, kind.stage_num(world.size)), kind.stages_of(world.rank, world.size)
    modules = [_Counting(Part(whole, range(index, index + 1), share=1 / 4)) for index in own]
    piped = pipeline(engine, world, kind, artifacts, modules=modules)
    for step, batch in enumerate(batches(world), start=1):
        piped.run(batch)
        for one in modules:
            assert_equal(one.seen, torch.tensor(4 * step, device=world.device), what="micro-batches seen")


@contract("PP-2-01")
def test_two_pipelines_in_turn(engine, world, artifacts, ledger):
    """Two schedules of the same stages' modules, run in turn, add up their gradients."""
    first = pipeline(engine, world, KINDS["gpipe"], artifacts)
    second = pipeline(engine, world, KINDS["1f1b"], artifacts, modules=list(first.modules.values()))
    given = batches(world)
    for _ in range(STEPS):
        first.run(given[0])
        second.run(given[0])
    baseline = train_baseline(whole_network(world, world.size), given[:1], mlp_loss).steps[0].grads
    expected = {name: 2 * STEPS * baseline[name] for name in first.names()}
    assert_close(first.gradients(), expected, ledger["pp_fp32"], what="gradients")

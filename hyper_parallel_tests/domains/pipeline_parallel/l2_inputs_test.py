"""What stages get: arguments of all kinds from whoever runs them, and tensors of all kinds from each other."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from hyper_parallel_tests.domains.pipeline_parallel.kinds import KINDS, each_common_kind, each_kind
from hyper_parallel_tests.domains.pipeline_parallel.networks import WIDTH, Part, batches, sgd, whole_network
from hyper_parallel_tests.domains.pipeline_parallel.setting import Pipeline, pipeline
from hyper_parallel_tests.harness import assert_close, assert_parity, contract, in_clean_process, train_baseline
from hyper_parallel_tests.models.mlp import Mlp, mlp_loss
from hyper_parallel_tests.models.seeding import Batch, build

MICRO_BATCHES = 4
each_single_kind = pytest.mark.parametrize("name", ["gpipe", "1f1b"])


def run(piped: Pipeline, *inputs: Any, **named: Any) -> list[Tensor]:
    """A run that must not raise; `inputs` are the first stage's."""
    try:
        return piped.schedule.run(*(inputs if piped.is_first else ()), **named)
    except Exception as error:
        pytest.fail(f"a stage does not get what it is given: {error}")


class Told(nn.Module):
    """A stage that scales its inputs and shifts them, by rows that are columns, and notes the `mode`."""

    def __init__(self, part: Part) -> None:
        super().__init__()
        self.part, self.modes = part, []

    def forward(
        self, inputs: Tensor, *, scale: Tensor, shift: dict[str, Tensor], mode: str, targets: Tensor | None = None
    ) -> Tensor:
        self.modes.append(mode)
        return self.part(inputs * scale + shift["by"].t(), targets)


def named_arguments(batch: Batch) -> dict[str, Any]:
    """A tensor that is not divided, one in a dict whose columns are rows, and a text."""
    scale = torch.linspace(0.5, 1.5, WIDTH, device=batch.inputs.device)
    return {"scale": scale, "shift": {"by": batch.targets.t().contiguous()}, "mode": "plain"}


def gradients_of_told(model: Mlp, batch: Batch) -> dict[str, Tensor]:
    """On a single card, with the whole batch."""
    hidden, layers = batch.inputs, len(model.layers)
    for index in range(layers):
        stage = Told(Part(model, range(index, index + 1)))
        last = {"targets": batch.targets} if index == layers - 1 else {}
        hidden = stage(hidden, **named_arguments(batch), **last)
    hidden.backward()
    return {name: one.grad for name, one in model.named_parameters()}


@contract("PP-2-01")
@each_single_kind
def test_named_arguments(engine, world, artifacts, ledger, name):
    """Each named argument is divided as its name tells, in whatever order they come, and all but tensors go whole."""
    batch, whole = batches(world)[0], whole_network(world, world.size)
    stage = Told(Part(whole, range(world.rank, world.rank + 1), share=1 / MICRO_BATCHES))
    columns, undivided = engine.BatchDimSpec(1), engine.BatchDimSpec(-1)
    piped = pipeline(
        engine,
        world,
        KINDS[name],
        artifacts,
        modules=[stage],
        # Of all ranks, though the first one alone has inputs, and the last one alone targets.
        args_batch_dim=(engine.BatchDimSpec(0),),
        kwargs_batch_dim={"shift": columns, "scale": undivided},
    )
    run(piped, batch.inputs, **({"targets": batch.targets} if piped.is_last else {}), **named_arguments(batch))
    expected = in_clean_process(gradients_of_told, whole_network(world, world.size), batch)
    own = {name: one.grad for name, one in stage.part.named_parameters()}
    assert_close(own, {name: expected[name] for name in own}, ledger["pp_fp32"], what="gradients")
    assert set(stage.modes) == {"plain"}


class Several(nn.Module):
    """A stage of three tensors: (rows, WIDTH) float32 and bfloat16, and (rows,) integers; the last one gives a loss."""

    def __init__(self, is_last: bool, share: float) -> None:
        super().__init__()
        self.wide, self.narrow = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self._is_last, self._share = is_last, share
        self.types: set[tuple[torch.dtype, ...]] = set()

    def forward(self, wide: Tensor, narrow: Tensor, numbers: Tensor) -> Any:
        self.types.add((wide.dtype, narrow.dtype, numbers.dtype))
        wide = torch.tanh(self.wide(wide)) * (1 + numbers.unsqueeze(1))
        narrow = self.narrow(narrow.float())
        if self._is_last:
            return (wide * narrow).mean() * self._share
        return wide, narrow.bfloat16(), numbers


def several(index: int, stage_num: int, share: float = 1.0) -> Several:
    return build(lambda: Several(index == stage_num - 1, share), index)


def several_inputs(batch: Batch) -> tuple[Tensor, Tensor, Tensor]:
    return batch.inputs, batch.targets.bfloat16(), torch.arange(len(batch.inputs), device=batch.inputs.device) % 3


def gradients_of_several(batch: Batch, stage_num: int) -> list[list[Tensor]]:
    """On a single card, by stage."""
    stages = [several(index, stage_num).to(batch.inputs.device) for index in range(stage_num)]
    given: Any = several_inputs(batch)
    for stage in stages[:-1]:
        given = stage(*given)
    stages[-1](*given).backward()
    return [[one.grad for one in stage.parameters()] for stage in stages]


@contract("PP-2-01")
@each_kind
def test_activations_of_several_types(engine, world, artifacts, ledger, kind):
    """A stage's outputs come to the next one in number, order and type, and all that have a gradient get theirs."""
    stage_num, batch = kind.stage_num(world.size), batches(world)[0]
    modules = [
        several(index, stage_num, 1 / MICRO_BATCHES).to(world.device)
        for index in kind.stages_of(world.rank, world.size)
    ]
    piped = pipeline(engine, world, kind, artifacts, modules=modules)
    for _ in range(2):
        piped.model.zero_grad()
        run(piped, *several_inputs(batch))
    expected = in_clean_process(gradients_of_several, batch, stage_num)
    for index, module in piped.modules.items():
        assert module.types == {(torch.float32, torch.bfloat16, torch.int64)}
        found = [one.grad for one in module.parameters()]
        assert_close(found, expected[index], ledger["pp_fp32"], what=f"gradients of stage {index}")


@contract("PP-2-01")
@each_common_kind
@pytest.mark.parametrize("frozen", ["first_stage", "last_stage"])
def test_frozen_stage(engine, world, artifacts, ledger, kind, frozen):
    """A stage that learns nothing has no gradients, and the others learn as on a single card."""
    stage_num, batch = kind.stage_num(world.size), batches(world)[0]
    piped = pipeline(engine, world, kind, artifacts)
    index = 0 if frozen == "first_stage" else stage_num - 1
    if index in piped.modules:
        piped.modules[index].requires_grad_(False)
    run(piped, batch.inputs, **({"targets": batch.targets} if piped.is_last else {}))
    baseline = train_baseline(whole_network(world, stage_num), [batch], mlp_loss).steps[0].grads
    expected = {name: baseline[name] for name in piped.names() if not name.startswith(f"layers.{index}.")}
    why = "a rank may have the frozen stage alone"
    assert_close(piped.gradients(), expected, ledger["pp_fp32"], what="gradients", zero_because=why)


@contract("PP-2-01")
def test_stage_of_all_ranks_by_default(engine, world, ledger):
    """A stage that is given neither group nor device is one of a pipeline of all ranks, where its module is."""
    part = Part(whole_network(world, world.size), range(world.rank, world.rank + 1), share=1 / MICRO_BATCHES)
    stage = engine.PipelineStage(part, world.rank, world.size)
    piped = Pipeline(world, {world.rank: part}, world.size, engine.Schedule1F1B(stage, MICRO_BATCHES))
    try:
        track = piped.train(batches(world), sgd)
    except Exception as error:
        pytest.fail(f"a stage of all ranks cannot be had without more words: {error}")
    baseline = train_baseline(whole_network(world, world.size), batches(world), mlp_loss, optimizer=sgd)
    assert_parity(track, baseline.only(piped.names()), ledger["pp_fp32"])


@contract("PP-2-01")
@each_common_kind
def test_evaluation_leaves_the_mode(engine, world, artifacts, kind):
    """Evaluation runs stages in the mode that they are in, and leaves them in it."""
    piped = pipeline(engine, world, kind, artifacts)
    modes = []
    for module in piped.modules.values():
        module.register_forward_pre_hook(lambda module, _: modes.append(module.training))
    with torch.no_grad():
        run(piped, batches(world)[0].inputs)
    assert all(modes)
    assert all(one.training for one in piped.model.modules())

"""A sharding plan on a module whose layers are divided by styles: both lay out inputs and outputs by hooks."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from hyper_parallel_tests.harness import World, assert_close, assert_parity, contract, train, train_baseline
from hyper_parallel_tests.interactions.life_cycle import assert_closed
from hyper_parallel_tests.interactions.scenario import scenario
from hyper_parallel_tests.models.seeding import Batch, build, generator

HERE = scenario("IX-01")
STEPS, ROWS, WIDTH, INNER = 3, 8, 8, 16
optimizer = partial(torch.optim.AdamW, lr=0.01, foreach=False)

FORMS: dict[str, Callable[[Any, Any, Any], Any]] = {
    "in_place": lambda model, left, right: model(left, right),
    "by_name": lambda model, left, right: model(right=right, left=left),
    "mixed": lambda model, left, right: model(left, right=right),
}
each_form = pytest.mark.parametrize("form", FORMS)


class Pair(nn.Module):
    """down(relu(up(left) + side(right))) * scale; each tensor is (ROWS, WIDTH)."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.side = nn.Linear(WIDTH, INNER), nn.Linear(WIDTH, INNER)
        self.down = nn.Linear(INNER, WIDTH)
        self.scale = nn.Parameter(torch.empty(WIDTH))

    def forward(self, left: Tensor, right: Tensor) -> Tensor:
        return self.down(torch.relu(self.up(left) + self.side(right))) * self.scale


def pair(world: World) -> Pair:
    return build(Pair, 0).to(world.device)


def batches(world: World) -> list[Batch]:
    """Two inputs and a target a step, the same on all ranks."""
    sources = [generator(seed, "plan_tensor") for seed in range(STEPS)]
    drawn = [[torch.randn(ROWS, WIDTH, generator=one).to(world.device) for _ in range(3)] for one in sources]
    return [Batch((left, right), target) for left, right, target in drawn]


def planned(engine: Any, mesh: Any, model: Pair) -> Pair:
    """Styles divide the layers and scatter the rows of their output; the plan gathers inputs and that output."""
    whole, rows = (engine.Replicate(),), engine.Shard(0)
    columns = partial(engine.ColwiseParallel, use_local_output=False)
    last = engine.RowwiseParallel(output_layouts=rows, use_local_output=False)
    engine.parallelize_module(model, mesh, {"up": columns(), "side": columns(), "down": last})
    plan = engine.ShardingPlan(
        plan={"scale": (rows,)},
        input_plan={"input": {"left": whole, "right": whole}},
        output_plan={"down.output": whole, "output": whole},
    )
    return engine.shard_module(model, mesh, plan)


def called(engine: Any, mesh: Any, model: nn.Module, inputs: tuple[Tensor, ...], form: str) -> Any:
    """The output, of inputs whose rows the ranks divide."""
    return FORMS[form](model, *(engine.distribute_tensor(one, mesh, (engine.Shard(0),)) for one in inputs))


def on_ranks(model: nn.Module, batch: Batch, *, engine: Any, mesh: Any, form: str) -> Tensor:
    return F.mse_loss(called(engine, mesh, model, batch.inputs, form).to_local(), batch.targets)


def on_one_card(model: nn.Module, batch: Batch) -> Tensor:
    return F.mse_loss(model(*batch.inputs), batch.targets)


@contract("IX-01")
@each_form
def test_trains_as_a_single_card_does(engine, world, ledger, form):
    """However the inputs come, loss, norm, gradients and parameters of three steps are the single card's."""
    mesh = HERE.mesh(world)
    step = partial(on_ranks, engine=engine, mesh=mesh, form=form)
    candidate = train(planned(engine, mesh, pair(world)), batches(world), step, optimizer=optimizer)
    baseline = train_baseline(pair(world), batches(world), on_one_card, optimizer=optimizer)
    assert_parity(candidate, baseline, ledger["tp_fp32"])


@contract("IX-01")
@each_form
def test_layouts_follow_styles_then_plan(engine, world, ledger, form):
    """Layers get whole rows, whichever way they come; the plan has the last word on the output of a divided layer."""
    mesh, model, seen = HERE.mesh(world), pair(world), {}
    planned(engine, mesh, model)

    def note(name: str) -> Callable[..., None]:
        def hook(module: nn.Module, args: tuple[Any, ...], output: Any = None) -> None:
            seen[name] = tuple(getattr(args[0] if output is None else output, "placements", ("a plain tensor",)))

        return hook

    model.up.register_forward_pre_hook(note("what up gets"))
    model.side.register_forward_pre_hook(note("what side gets"))
    model.down.register_forward_hook(note("what down gives"))
    output = called(engine, mesh, model, batches(world)[0].inputs, form)
    seen["the output"] = tuple(output.placements)
    whole = (engine.Replicate(),)
    assert seen == dict.fromkeys(("what up gets", "what side gets", "what down gives", "the output"), whole)
    assert_close(output.to_local().detach(), pair(world)(*batches(world)[0].inputs).detach(), ledger["tp_fp32"])


@contract("IX-01")
def test_life_cycle_is_closed(engine, world):
    """After a step parameters are as they lay, no hook is left and nothing has grown."""
    mesh, (rows, *_) = HERE.mesh(world), batches(world)
    model = planned(engine, mesh, pair(world))
    update = optimizer(model.parameters())
    assert_closed(lambda: on_ranks(model, rows, engine=engine, mesh=mesh, form="mixed").backward(), update, model)

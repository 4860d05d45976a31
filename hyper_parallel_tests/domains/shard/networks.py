"""A block of two inputs, the plan that divides it, and its training."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from hyper_parallel_tests.domains.shard.setting import FORMS, layout, mesh_of, on
from hyper_parallel_tests.harness import World, in_clean_process, train, train_baseline
from hyper_parallel_tests.harness.judging.parity import Track
from hyper_parallel_tests.models.seeding import Batch, build, generator

ROWS, WIDTH, INNER = 8, 8, 16
STEPS = 2
# As a layout of each parameter: columns, columns, rows.
BLOCK_PLACEMENTS = {"left_up": "S1", "right_up": "S1", "down": "S0"}


class Block(nn.Module):
    """relu(left A + right B) C; each tensor is (ROWS, WIDTH)."""

    def __init__(self) -> None:
        super().__init__()
        self.left_up = nn.Parameter(torch.empty(WIDTH, INNER))
        self.right_up = nn.Parameter(torch.empty(WIDTH, INNER))
        self.down = nn.Parameter(torch.empty(INNER, WIDTH))

    def forward(self, left: Tensor, right: Tensor | None = None) -> Tensor:
        hidden = torch.matmul(left, self.left_up)
        if right is not None:
            hidden = hidden + torch.matmul(right, self.right_up)
        return torch.matmul(torch.relu(hidden), self.down)


def block(world: World) -> nn.Module:
    return build(Block, 0).to(world.device)


def block_plan(engine: Any, *, grid: bool = False) -> Any:
    """Inputs come divided and are gathered; the terms of the output are summed.

    On a grid of two mesh dimensions this is along the second; along the first, rows are divided and parameters are not.
    """
    whole, rows = (("R",), ("S0",)) if grid else ((), ())
    return engine.ShardingPlan(
        plan={name: layout(engine, *whole, kind) for name, kind in BLOCK_PLACEMENTS.items()},
        input_plan={"input": dict.fromkeys(("left", "right"), layout(engine, *rows, "R"))},
        output_plan={"output": layout(engine, *rows, "R")},
    )


def two_inputs(world: World) -> list[Batch]:
    """Pairs of inputs with a target, the same on all ranks."""
    sources = [generator(seed, "shard") for seed in range(STEPS)]
    drawn = [[torch.randn(ROWS, WIDTH, generator=one).to(world.device) for _ in range(3)] for one in sources]
    return [Batch((left, right), target) for left, right, target in drawn]


class PartwiseSGD(torch.optim.SGD):
    """Goes over the parts of the parameters, element by element, as every engine can."""

    def __init__(self, params: Any, engine: Any, **options: Any) -> None:
        super().__init__(params, **options)
        self._engine = engine

    def step(self, closure: Any = None) -> None:
        with self._engine.SkipDTensorDispatch():
            super().step(closure)


OPTIONS = {"lr": 0.1, "momentum": 0.9}
SGD = partial(torch.optim.SGD, **OPTIONS)


def train_sharded(
    engine: Any,
    world: World,
    model: nn.Module,
    form: str,
    optimizer: Callable[..., Any] | None = None,
    give: Callable[[Tensor], Any] | None = None,
) -> Track:
    """Trains a module on distributed inputs; its output is a distributed tensor.

    Args:
        optimizer: makes one from parameters; None for `PartwiseSGD`.
        give: distributes an input; None for a division by rows over a mesh of one dimension.
    """
    give = give or (lambda one: on(engine, mesh_of(world), one, "S0"))

    def loss(module: nn.Module, batch: Batch) -> Tensor:
        given = [give(one) for one in batch.inputs]
        output = FORMS[form](module, *given)
        whole = output.full_tensor().detach().requires_grad_()
        value = F.mse_loss(whole, batch.targets)
        engine.backward(output, *torch.autograd.grad(value, whole))
        return value.detach()

    def gradients() -> list[tuple[str, Tensor]]:
        return [(name, engine.full_gradient(one)) for name, one in model.named_parameters()]

    optimizer = optimizer or partial(PartwiseSGD, engine=engine, **OPTIONS)
    return train(model, two_inputs(world), loss, optimizer=optimizer, backward=None, grads=gradients)


def train_on_one_card(world: World, form: str) -> Track:
    """The baseline: the same block, unsharded, on whole inputs."""
    return train_baseline(block(world), two_inputs(world), partial(_whole_loss, form=form), optimizer=SGD)


def _whole_loss(model: nn.Module, batch: Batch, form: str) -> Tensor:
    return F.mse_loss(FORMS[form](model, *batch.inputs), batch.targets)


def whole_output(world: World, inputs: Sequence[Tensor], form: str = "in_place") -> Tensor:
    """The baseline of one forward pass: what the unsharded block makes of whole inputs."""
    return in_clean_process(_output, block(world), inputs, form)


def whole_gradients(world: World, batch: Batch) -> list[Tensor]:
    """The baseline of one backward pass: gradients of whole inputs, where the output's is the batch's target."""
    return in_clean_process(_input_gradients, block(world), batch)


def _input_gradients(model: nn.Module, batch: Batch) -> list[Tensor]:
    given = [one.detach().requires_grad_() for one in batch.inputs]
    return list(torch.autograd.grad(model(*given), given, batch.targets))


def _output(model: nn.Module, inputs: Sequence[Tensor], form: str) -> Tensor:
    return FORMS[form](model, *inputs).detach()

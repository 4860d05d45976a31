"""Dry runs of programs out of the ordinary, against real runs of the same on one card."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from hyper_parallel_tests.domains.monitor.counting import really, told
from hyper_parallel_tests.engines.port.dry_run import DryRunProgram
from hyper_parallel_tests.harness import assert_close, contract
from hyper_parallel_tests.models.decoder_layouts import adam
from hyper_parallel_tests.models.mlp import mlp, mlp_batch, mlp_loss

WIDTH, DEPTH, ROWS = 6, 3, 5


def program_of(model: nn.Module, forward: Callable[[], Tensor], data: Any) -> DryRunProgram:
    trained = [one for one in model.parameters() if one.requires_grad]
    return DryRunProgram(model, adam(trained), forward, data=list(data))


def frozen(_: Any) -> DryRunProgram:
    """The first layer is not trained: it has neither a gradient nor states."""
    model, batch = mlp(WIDTH, DEPTH), mlp_batch(0, ROWS, WIDTH)
    model.layers[0].requires_grad_(False)
    return program_of(model, partial(mlp_loss, model, batch), batch)


class Scaled(nn.Module):
    """Rows times a buffer, which waits for backward and is no activation."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(WIDTH, WIDTH)
        self.register_buffer("scale", torch.ones(ROWS, WIDTH))

    def forward(self, rows: Tensor) -> Tensor:
        return (self.layer(rows) * self.scale).sum()


def buffer(_: Any) -> DryRunProgram:
    """A buffer that autograd saves."""
    model, rows = Scaled(), torch.ones(ROWS, WIDTH)
    return program_of(model, partial(model, rows), [rows])


def half(_: Any) -> DryRunProgram:
    """Elements of two bytes."""
    kind = {"dtype": torch.bfloat16}
    model, rows = nn.Linear(WIDTH, WIDTH, **kind), torch.ones(ROWS, WIDTH, **kind)
    return program_of(model, lambda: torch.tanh(model(rows)).square().sum(), [rows])


def recomputed(_: Any) -> DryRunProgram:
    """A layer that keeps its input alone and runs once more in backward."""
    model, batch = mlp(WIDTH, DEPTH), mlp_batch(0, ROWS, WIDTH)
    first, *others = model.layers

    def forward() -> Tensor:
        hidden = checkpoint(lambda rows: torch.tanh(first(rows)), batch.inputs, use_reentrant=False)
        for one in others:
            hidden = one(hidden)
        return hidden.square().sum()

    return program_of(model, forward, batch)


PROGRAMS = {one.__name__: one for one in (frozen, buffer, half, recomputed)}


@contract("MO-0-01")
@pytest.mark.parametrize("program", PROGRAMS.values(), ids=PROGRAMS)
def test_one_card(engine, program):
    """Bytes of each kind are those of a real run."""
    assert told(engine.dry_run(program, {"fsdp": 1})) == really(program(None))


@contract("MO-0-01")
@pytest.mark.parametrize(("number", "kinds"), [(7, 3), (6, 3), (2, 4)], ids=["uneven", "even", "few"])
def test_tokens_are_spread_evenly(engine, number, kinds):
    """Each expert gets as many tokens as the others or one more, and all of them together as many as there are."""
    seen = []

    def program(_: Any) -> DryRunProgram:
        model, chosen = nn.Linear(1, 1), torch.zeros(number, dtype=torch.int64)

        def forward() -> Tensor:
            seen.append(torch.bincount(chosen, minlength=kinds).tolist())
            return model(torch.ones(1, 1)).sum()

        return program_of(model, forward, [chosen])

    engine.dry_run(program, {"fsdp": 1})
    (counts,) = seen
    assert sum(counts) == number
    assert max(counts) - min(counts) <= 1


@contract("MO-0-01")
def test_failed_program(engine, ledger):
    """A program that fails leaves nothing behind: neither its world nor its way to compute."""

    def failing(_: Any) -> DryRunProgram:
        raise ZeroDivisionError

    model, batch = mlp(WIDTH, DEPTH), mlp_batch(0, ROWS, WIDTH)
    before, state = mlp_loss(model, batch).detach(), torch.get_rng_state()
    group = torch.distributed.is_initialized()
    with pytest.raises(ZeroDivisionError):
        engine.dry_run(failing, {"dp": 4, "tp": 2}, rank=5)
    assert torch.distributed.is_initialized() == group
    assert_close(mlp_loss(model, batch).detach(), before, ledger["exact"], what="loss")
    assert_close(torch.get_rng_state(), state, ledger["exact"], what="random state")
    assert told(engine.dry_run(frozen, {"fsdp": 1})) == really(frozen(None))

"""What the precision monitor reads a step from, and what it makes of it."""

from __future__ import annotations

import re
from types import SimpleNamespace

import pytest
import torch

from hyper_parallel_tests.harness import assert_close, contract


@contract("MO-2-01")
def test_which_gradient(engine, world, ledger):
    """A main gradient of None is none, one is enough where there is no other, and it stays as it is."""
    first, second = (torch.nn.Parameter(torch.ones(4)) for _ in range(2))
    first.grad, first.main_grad = torch.full((4,), 3.0), None
    second.main_grad = torch.full((4,), 4.0, dtype=torch.float16)
    model = torch.nn.Module()
    model.first, model.second = first, second
    record = engine.TrainingStateMonitor(model).record()
    assert dict(record.local_norms) == {"first": 6.0, "second": 8.0}
    norms = torch.tensor([record.local_norm, record.global_norm], dtype=torch.float64)
    assert_close(norms, torch.full_like(norms, 10.0), ledger["collectives_fp64"], what="norms")
    assert first.main_grad is None
    assert second.grad is None
    assert second.main_grad.dtype is torch.float16
    assert second.main_grad.tolist() == [4.0] * 4


@contract("MO-2-01")
def test_small_gradients(engine):
    """Squares of fp16 gradients that fp16 would round to zero count."""
    model = torch.nn.Linear(4, 1, bias=False).half()
    model.weight.grad = torch.full_like(model.weight, 2.0**-20)
    record = engine.TrainingStateMonitor(model).record()
    assert record.local_norm == record.global_norm == 2.0**-19


@contract("MO-2-01")
def test_loss_is_read(engine, world):
    """The loss is told as a plain number, and what it was computed from can still be asked for."""
    weight = torch.ones(2, requires_grad=True)
    loss = (3.0 * weight).sum()
    record = engine.TrainingStateMonitor(torch.nn.Linear(2, 2)).record(loss)
    assert type(record.local_loss) is float
    assert record.local_loss == 6.0
    assert loss.grad_fn is not None
    loss.backward()
    assert weight.grad.tolist() == [3.0, 3.0]


@contract("MO-2-01")
@pytest.mark.parametrize("loss", [None, 1.25], ids=["no_loss", "loss"])
def test_line(engine, loss):
    """A line has step, global norm, local norm, loss if there is one, and the norms asked for, in this order."""
    norms = {"a": 0.25, "b": 8.0}
    record = SimpleNamespace(step=7, global_norm=2.0, local_norm=0.5, local_loss=loss, local_norms=norms)
    line = engine.format_record(record, ["b", "a"])
    assert "\n" not in line
    numbers = [float(one) for one in re.findall(r"\d+(?:\.\d+)?", line)]
    assert numbers == [7.0, 2.0, 0.5] + ([] if loss is None else [loss]) + [8.0, 0.25]

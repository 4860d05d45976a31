"""The precision monitor on two ranks: shards, divided layers, stages; and gradients out of the ordinary."""

from __future__ import annotations

import math

import pytest
import torch

from hyper_parallel_tests.domains.monitor.checks import check_bits, check_told
from hyper_parallel_tests.domains.monitor.setting import batches, by_hand, everybody, joined, run_of
from hyper_parallel_tests.harness import assert_close, contract, trace

LAYOUTS = {"FSDP": {"fsdp": 2}, "TP": {"tp": 2}, "PP": {"pp": 2}}
each_layout = pytest.mark.parametrize("degrees", LAYOUTS.values(), ids=LAYOUTS)


@contract("MO-2-01")
@each_layout
def test_told_is_so(engine, world, ledger, degrees):
    """Global norm, local norms and local loss are those of one card and those counted by hand."""
    check_told(engine, world, ledger, degrees)


@contract("MO-2-01")
@each_layout
def test_changes_no_bit(engine, world, ledger, degrees):
    """Training with the monitor is training without it."""
    check_bits(engine, world, ledger, degrees)


@contract("MO-2-01")
@pytest.mark.parametrize("guilty", [0, 1])
@pytest.mark.parametrize("value", ["nan", "inf"])
def test_not_finite(engine, world, ledger, guilty, value):
    """A gradient that is not finite on one rank is in the global norm of all, in that rank's local one, and stays."""
    run = run_of(engine, world, {"fsdp": 2})
    run.step(run.laid.part(batches(world.device)[0]))
    first = run.model.embedding.weight.grad
    if world.rank == guilty:
        first.to_local()[0, 0] = float(value)
    before = first.to_local().clone()
    record = run.monitor(engine).record()
    assert str(record.global_norm) == value
    assert str(record.local_norms["embedding.weight"] if world.rank == guilty else record.global_norm) == value
    assert math.isfinite(record.local_norm) == (world.rank != guilty)
    assert_close(first.to_local().nan_to_num(), before.nan_to_num(), ledger["exact"], what="gradient")


@contract("MO-2-01")
def test_parameters_without_gradients(engine, world, ledger):
    """A parameter without a gradient counts as 0, on one rank alone too; one that needs none is left out."""
    run = run_of(engine, world, {"fsdp": 2})
    run.step(run.laid.part(batches(world.device)[0]))
    model, frozen = run.model, run.model.norm.weight
    frozen.requires_grad_(False)
    model.output.weight.grad = None
    if world.rank == 1:
        model.embedding.weight.grad = None
    record = run.monitor(engine).record()
    mine = by_hand(model)
    assert set(record.local_norms) == set(mine)
    assert record.local_norms["output.weight"] == 0.0
    expected = torch.tensor(joined(everybody(joined(mine.values()))), dtype=torch.float64)
    found = torch.tensor(record.global_norm, dtype=torch.float64)
    assert_close(found, expected, ledger["collectives_fp64"], what="global norm")


@contract("MO-2-01")
def test_half_precision(engine, world, ledger):
    """Squares of fp16 gradients that fp16 cannot hold are summed in wider numbers, main gradients before others."""
    run = run_of(engine, world, {"pp": 2})
    for one in run.model.parameters():
        one.grad = torch.full_like(one, 1.0)
        one.main_grad = torch.full(one.shape, 300.0, dtype=torch.float16)
    record = run.monitor(engine).record()
    elements = sum(everybody(sum(one.numel() for one in run.model.parameters())))
    expected = torch.tensor(300.0 * math.sqrt(elements), dtype=torch.float64)
    found = torch.tensor(record.global_norm, dtype=torch.float64)
    assert_close(found, expected, ledger["collectives_fp64"], what="global norm")


@contract("MO-2-01")
def test_only_each_interval(engine, world):
    """Steps that the interval leaves out give no record and communicate nothing; those that count are numbered so."""
    run = run_of(engine, world, {"fsdp": 2})
    monitor = run.monitor(engine, interval=3)
    run.step(run.laid.part(batches(world.device)[0]))
    sent = []
    for _ in range(7):
        with trace.collectives() as collectives:
            monitor.record()
        sent.append(len(collectives.ops()))
    assert [one.step for one in monitor.records] == [0, 3, 6]
    assert [bool(number) for number in sent] == [True, False, False, True, False, False, True]
    assert sent[0] == 1, f"a number is reduced once, and there were {sent[0]} collectives"


@contract("MO-2-01")
def test_without_a_mesh(engine, world, ledger):
    """Where the parameters' mesh has all ranks it needs not be given; a plain model is one model on all ranks."""
    run = run_of(engine, world, {"fsdp": 2})
    run.step(run.laid.part(batches(world.device)[0]))
    found = engine.TrainingStateMonitor(run.model).record().global_norm
    assert found == run.monitor(engine).record().global_norm
    copies = torch.nn.Linear(3, 3)
    for one in copies.parameters():
        one.grad = torch.ones_like(one)
    norm = torch.tensor(engine.TrainingStateMonitor(copies).record().global_norm, dtype=torch.float64)
    assert_close(
        norm, torch.tensor(12.0, dtype=torch.float64).sqrt(), ledger["collectives_fp64"], what="norm of copies"
    )


@contract("MO-2-01")
def test_bad_settings_are_refused(engine, world):
    """A dimension that the mesh has not, an interval below 1, a name that no parameter has: each names the culprit."""
    run = run_of(engine, world, {"fsdp": 2})
    with pytest.raises(ValueError, match="stage_dim 'pp' .* fsdp"):
        engine.TrainingStateMonitor(run.model, mesh=run.mesh, stage_dim="pp")
    with pytest.raises(ValueError, match="interval is 0"):
        run.monitor(engine, interval=0)
    record = run.monitor(engine).record(torch.tensor(1.5))
    with pytest.raises(KeyError, match="norm.weight"):
        engine.format_record(record, ["norms.weight"])

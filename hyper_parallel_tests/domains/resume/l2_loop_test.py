"""What a trainer does is what the loop does that it stands for, and what its validation finds is the rows' mean."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from hyper_parallel_tests.domains.resume.networks import Rows, loss_of, network, rows
from hyper_parallel_tests.domains.resume.observation import INGREDIENTS
from hyper_parallel_tests.domains.resume.runs import PLAIN, Plan, made, observed
from hyper_parallel_tests.domains.resume.written_out import rate_of, written_out
from hyper_parallel_tests.harness import assert_close, assert_equal, assert_parity, contract

PLANS = {
    "adamw_cosine": PLAIN.also(
        "--lr_schedule.name=cosine",
        "--lr_schedule.warmup_steps=2",
        "--optimizer.weight_decay=0.2",
        "--training.max_grad_norm=0.5",
        "--loss_scale.enabled=true",
        "--loss_scale.init_scale=8",
    ),
    "sgd_linear": PLAIN.also(
        "--lr_schedule.name=linear",
        "--lr_schedule.warmup_steps=3",
        "--optimizer.name=sgd",
        "--optimizer.weight_decay=0.2",
        "--optimizer.momentum=0.5",
    ),
    "level": PLAIN.also("--training.gradient_accumulation_steps=1", "--data.shuffle=false"),
}


def rows_of_all_ranks(engine: Any, config: Any) -> list[list[list[int]]]:
    """For each step, for each micro-batch, the rows of all ranks."""
    parts = config.training.gradient_accumulation_steps
    size = config.training.global_batch_size // parts
    loader = engine.StatefulDataLoader(rows(), size, seed=config.data.seed, shuffle=config.data.shuffle)
    found = []
    for _ in range(config.training.steps * parts):
        found.append(loader.next_rows())
        loader.next_batch()
    return [found[step * parts : (step + 1) * parts] for step in range(config.training.steps)]


@contract("RS-2-02")
@pytest.mark.parametrize("plan", PLANS.values(), ids=PLANS)
def test_the_loop_written_out(engine, world, ledger, plan):
    """Losses, gradients, parameters and records are those of a loop with windows, clipping, decay and rates."""
    trainer, seen = observed(world, plan.also("--callbacks=[logging]", "--logging.interval=2"), "fsdp")
    trainer.train()
    found, config = seen(trainer), trainer.config
    expected = written_out(config, rows_of_all_ranks(engine, config))
    assert_parity(found.track, expected, ledger["fsdp_1d_fp32"])
    losses = [one.loss for one in expected.steps]
    records = {f"behind step {one['step']}": one["loss"] for one in found.log}
    means = {f"behind step {step}": sum(losses[step - 2 : step]) / 2 for step in (2, 4, 6)}
    assert_close(records, means, ledger["fsdp_1d_fp32"], what="logged loss")
    # A record is made when the schedule has moved on.
    rates = {f"behind step {one['step']}": one["lr"] for one in found.log}
    expected_rates = {f"behind step {step}": [rate_of(config, step)] * 2 for step in (2, 4, 6)}
    assert_close(rates, expected_rates, ledger["fsdp_1d_fp32"], what="logged learning rates")


UNMOVED = (
    "parameters",
    "buffers",
    "gradients",
    "place_in_data",
    "progress",
    "pytorch_numbers",
    "python_numbers",
    "numpy_numbers",
)


def with_an_open_window(world: Any, validation: Rows) -> Any:
    """A trainer in the middle of a window, of whose model a part is in its evaluation mode."""
    trainer = made(world, Plan(PLAIN.settings, dropout=0.5), "fsdp", validation=validation)
    trainer.train(micro_batches=1)
    trainer.model.layers["0"].eval()
    return trainer


@contract("RS-2-02")
@pytest.mark.parametrize("count", [4, 5], ids=["even", "uneven"])
def test_validation(engine, world, ledger, count):
    """A validation is the mean loss of all rows, each once, of the model in its evaluation mode, on every rank."""
    data = Rows(count, noisy=False)
    trainer = with_an_open_window(world, data)
    found = trainer.evaluate()["loss"]
    batch = torch.utils.data.default_collate([data[number] for number in range(count)])
    with torch.no_grad():
        expected = float(loss_of(network(0).eval(), batch))
    assert_close(found, expected, ledger["fsdp_1d_fp32"], what="the loss of all rows")


@contract("RS-2-02")
def test_validation_changes_nothing(engine, world):
    """Behind a validation modes, generators that its rows have drawn from, and the open window are as they were."""
    trainer = with_an_open_window(world, Rows(4, noisy=True))
    before = {name: INGREDIENTS[name](trainer) for name in UNMOVED}
    modes = {name: one.training for name, one in trainer.model.named_modules()}
    trainer.evaluate()
    assert {name: one.training for name, one in trainer.model.named_modules()} == modes
    assert_equal({name: INGREDIENTS[name](trainer) for name in UNMOVED}, before, what="ingredients")


@contract("RS-2-02")
def test_no_rows_to_validate(engine, world):
    """A validation without rows is an error that says what is missing."""
    trainer = made(world, PLAIN, "fsdp")
    with pytest.raises(ValueError, match="validation_dataset"):
        engine.BaseTrainer(trainer.config, trainer.model, loss_of, rows(), mesh=trainer.mesh).evaluate()

"""Baselines in the rank: on copies, by names alone, and the only ones that count as baselines."""

from __future__ import annotations

import pytest
import torch

from hyper_parallel_tests.harness.judging.baseline import train_baseline
from hyper_parallel_tests.harness.judging.clean import in_clean_process, inside
from hyper_parallel_tests.harness.judging.parity import VacuousComparison, assert_equal, assert_parity, train
from hyper_parallel_tests.harness.judging.tolerances import ledger
from hyper_parallel_tests.models.mlp import mlp, mlp_batch, mlp_loss

BATCHES = [mlp_batch(0, width=4), mlp_batch(1, width=4)]


def sgd(params) -> torch.optim.Optimizer:
    return torch.optim.SGD(params, lr=0.1, momentum=0.9)


def run(train=train, **options):
    return train(mlp(width=4, depth=2), BATCHES, mlp_loss, optimizer=sgd, **options)


def test_baseline_is_the_same_training():
    """It has the bits of the same training beside the engine."""
    assert_parity(run(), run(train_baseline), ledger["exact"])


def test_run_beside_the_engine_is_no_baseline():
    """Whatever engine it is, so that it is noticed where no engine changes torch."""
    with pytest.raises(VacuousComparison, match="train_baseline"):
        assert_parity(run(), run(), ledger["exact"])


def test_own_run_for_a_reason():
    """One run of the engine may be held to another if the case says why."""
    assert_parity(run(), run(), ledger["exact"], own_because="offloading is to change no bit")


def test_model_of_a_baseline_stays_as_it_is():
    """A copy is trained."""
    model = mlp(width=4, depth=2)
    before = {name: one.detach().clone() for name, one in model.named_parameters()}
    train_baseline(model, BATCHES, mlp_loss, optimizer=sgd)
    assert_equal(dict(model.named_parameters()), before)
    assert [one.grad for one in model.parameters()] == [None] * 4


def test_only_some_parameters():
    """What is left out is nowhere in the run; the norms stay those of all."""
    whole = run(train_baseline)
    part = whole.only({"layers.1.weight"})
    assert [*part.start] == [*part.steps[1].grads] == [*part.steps[1].params] == ["layers.1.weight"]
    assert [step.norm for step in part.steps] == [step.norm for step in whole.steps]
    assert part.clean


def add(values: list[torch.Tensor], more: list[torch.Tensor]) -> list[torch.Tensor]:
    assert inside()
    values[0] += 1
    more[0] += 1
    return values


def test_arguments_are_copies():
    """Nothing that a baseline does to its arguments is seen here; what is one tensor here is one there."""
    values = [torch.zeros(2)]
    assert_equal(in_clean_process(add, values, values), [torch.full((2,), 2.0)])
    assert_equal(values, [torch.zeros(2)])
    assert not inside()


def test_inner_function():
    """It has no name to travel by."""

    def inner() -> None:
        pass

    with pytest.raises(TypeError, match=r"cannot be pickled.*functools\.partial"):
        in_clean_process(inner)


def boom() -> None:
    raise KeyError("boom")


def test_error_leaves_the_baseline():
    """What runs after a baseline that raises is none."""
    with pytest.raises(KeyError, match="boom"):
        in_clean_process(boom)
    assert not inside()

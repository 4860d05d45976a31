"""Parity: what three independent assertions catch, and what the one report says."""

from __future__ import annotations

import copy
from dataclasses import replace

import pytest
import torch

from hyper_parallel_tests.harness.judging.parity import Track, VacuousComparison, assert_parity, train
from hyper_parallel_tests.harness.judging.tolerances import ledger
from hyper_parallel_tests.models.mlp import mlp, mlp_batch, mlp_loss

ROW = ledger["fsdp_1d_fp32"]
BATCHES = [mlp_batch(0, width=4), mlp_batch(1, width=4)]


def sgd(params) -> torch.optim.Optimizer:
    return torch.optim.SGD(params, lr=0.1, momentum=0.9)


def run(loss=mlp_loss, **options) -> Track:
    """Two steps of a small network, good for a baseline; each call starts anew."""
    track = train(mlp(width=4, depth=2), BATCHES, loss, **{"optimizer": sgd, **options})
    return replace(track, clean=True)


def altered(change, step: int = 1) -> Track:
    """A run that `change` has spoiled in one step: it gets the step as a dict and changes it."""
    track = run()
    parts = copy.deepcopy(vars(track.steps[step]))
    change(parts)
    steps = list(track.steps)
    steps[step] = replace(track.steps[step], **parts)
    return replace(track, steps=tuple(steps))


def report(candidate: Track, baseline: Track | None = None) -> str:
    """What assert_parity says of a candidate that must not pass."""
    with pytest.raises(AssertionError) as caught:
        assert_parity(candidate, baseline or run(), ROW)
    return str(caught.value)


def bump(parts: dict, what: str, name: str, index: tuple[int, ...], by: float) -> None:
    parts[what][name][index] += by


# -- three independent assertions


def test_equal_runs_are_at_parity():
    """A run agrees with its repetition, to the bit."""
    assert_parity(run(), run(), ledger["exact"])


def test_a_wrong_loss_alone_is_caught():
    """Norm and tensors agree, the loss does not."""
    text = report(altered(lambda parts: parts.update(loss=parts["loss"] + 1e-3)))
    assert "  loss    DIFFERS  1 of 2 compared" in text
    assert "  norm    agrees   2 compared" in text
    assert "  tensors agrees   20 compared" in text
    assert "loss: first out of tolerance: loss at step 1" in text


def test_a_wrong_norm_alone_is_caught():
    """Loss and tensors agree, the norm that the engine reports does not."""
    text = report(altered(lambda parts: parts.update(norm=parts["norm"] * 2)))
    assert "  loss    agrees" in text
    assert "  norm    DIFFERS  1 of 2 compared" in text
    assert "  tensors agrees" in text


@pytest.mark.parametrize("what", ["grads", "params"])
@pytest.mark.parametrize("step", [0, 1])
def test_a_wrong_element_alone_is_caught(what, step):
    """Loss and norm agree, one element of one tensor does not, in whichever step."""
    text = report(altered(lambda parts: bump(parts, what, "layers.1.bias", (2,), 1e-4), step))
    assert "  loss    agrees" in text
    assert "  norm    agrees" in text
    assert "  tensors DIFFERS  1 of 20 compared" in text
    assert "the norms agree although the elements do not" in text


def test_the_report_names_everything():
    """Step, first tensor in the model's order, worst element, values, ratio, and what would hide it."""

    def spoil(parts):
        bump(parts, "grads", "layers.1.weight", (3, 1), 1.0)
        bump(parts, "grads", "layers.0.bias", (2,), 2e-4)

    text = report(altered(spoil, step=0))
    assert text.splitlines()[0] == f"no parity with {ROW!r} over 2 steps, judged"
    first = next(line for line in text.splitlines() if line.startswith("tensors:"))
    assert first.startswith("tensors: first out of tolerance: gradient of layers.0.bias at step 0: 1 of 4 elements")
    assert "worst element [2]: got " in text
    assert "= 20 x the tolerance" in text
    assert "it would pass at 1e-03, which is no remedy" in text
    assert "also: gradient of layers.1.weight at step 0 (1 of 16 elements out of tolerance)" in text


@pytest.mark.parametrize(
    ("what", "said"),
    [
        ("loss", "loss at step 1"),
        ("norm", "norm at step 1"),
        ("grads", "gradient of layers.0.bias at step 1"),
        ("params", "parameter layers.0.bias after step 1"),
    ],
)
def test_the_report_begins_with_what_parted_first(what, said):
    """In a step the loss comes first, then gradients, their norm and the updated parameters."""

    def spoil(parts):
        for later in ("params", "norm", "grads", "loss"):
            if later in ("loss", "norm"):
                parts[later] += 1
            else:
                bump(parts, later, "layers.0.bias", (2,), 1.0)
            if later == what:
                return

    text = report(altered(spoil))
    assert text.splitlines()[1] == f"first to part: {said}"


def test_the_first_to_part_is_the_earliest_step():
    """A gradient of step 0 comes before everything of step 1, and the start before both."""
    late = altered(lambda parts: parts.update(loss=parts["loss"] + 1))
    bump(vars(late.steps[0]), "grads", "layers.1.bias", (0,), 1.0)
    assert "first to part: gradient of layers.1.bias at step 0\n" in report(late)
    late.start["layers.0.weight"][0, 0] += 1
    assert "first to part: parameter layers.0.weight at the start\n" in report(late)


def test_a_common_factor_shows_in_the_report():
    """Gradients that are summed and not averaged are told as their factor."""

    def double(parts):
        parts["grads"] = {name: 2 * grad for name, grad in parts["grads"].items()}

    assert "every element is 2 x the expected one" in report(altered(double, step=0))


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_not_finite_is_caught_everywhere(bad):
    """NaN or Inf in loss, norm or a tensor is a failure that says so."""
    for change in (
        lambda parts: parts.update(loss=bad),
        lambda parts: parts.update(norm=bad),
        lambda parts: bump(parts, "grads", "layers.0.bias", (1,), bad),
    ):
        assert "NaN or Inf in the candidate" in report(altered(change))


def test_not_finite_on_both_sides_is_no_parity():
    """A baseline that diverged proves nothing about a candidate that diverged too."""
    diverged = altered(lambda parts: parts.update(loss=float("nan")))
    assert "NaN or Inf in the candidate and the baseline" in report(diverged, replace(diverged))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda grads: grads.pop("layers.0.bias"), "the candidate has none, the baseline does"),
        (lambda grads: grads.update(extra=torch.ones(1)), "the candidate has one, the baseline does not"),
        (lambda grads: grads.update({"layers.0.bias": torch.ones(2)}), "shape [2], expected [4]"),
        (
            lambda grads: grads.update({"layers.0.bias": grads["layers.0.bias"].bfloat16()}),
            "dtype torch.bfloat16, expected torch.float32",
        ),
    ],
    ids=["missing", "extra", "shape", "dtype"],
)
def test_tensors_must_be_the_same_ones(change, said):
    """A missing or additional tensor, another shape or another dtype is a failure that says so."""
    assert said in report(altered(lambda parts: change(parts["grads"])))


def test_runs_that_start_apart_are_told_so_first():
    """Other initial parameters are the first thing that the report names."""
    apart = train(mlp(width=4, depth=2, seed=1), BATCHES, mlp_loss, optimizer=sgd)
    assert "tensors: first out of tolerance: parameter layers.0.weight at the start" in report(apart)


def test_runs_of_different_length_are_not_alike():
    """Steps and updates must match before anything is compared."""
    assert "the runs are not alike" in report(replace(run(), steps=run().steps[:1]))
    assert "the runs are not alike" in report(run(optimizer=None))


# -- comparisons that could not fail


def test_no_steps_is_an_error():
    """Nothing compared is no pass."""
    empty = replace(run(), steps=())
    with pytest.raises(VacuousComparison, match="no gradient to compare"):
        assert_parity(empty, replace(empty), ROW)


def test_no_gradients_is_an_error():
    """A frozen model has nothing to compare."""
    frozen = replace(run(), steps=tuple(replace(step, grads={}) for step in run().steps))
    with pytest.raises(VacuousComparison, match="no gradient to compare"):
        assert_parity(frozen, replace(frozen), ROW)


@pytest.mark.parametrize("scale", [0.0, 1e-8])
def test_gradients_too_small_to_judge_are_an_error(scale):
    """Zeros, and what the tolerance could not tell from zeros, are refused unless said to be right."""

    def tiny(model, batch):
        return mlp_loss(model, batch) * scale

    runs = [run(tiny) for _ in range(2)]
    with pytest.raises(VacuousComparison, match="zero_because"):
        assert_parity(*runs, ROW)
    assert_parity(*runs, ROW, zero_because="the loss is scaled to nothing")


def test_zero_baseline_against_a_real_candidate_fails_as_a_difference():
    """Only both sides at zero are vacuous; one side is wrong."""
    zero = replace(
        run(optimizer=None),
        steps=tuple(
            replace(step, norm=0.0, grads={name: torch.zeros_like(grad) for name, grad in step.grads.items()})
            for step in run(optimizer=None).steps
        ),
    )
    with pytest.raises(AssertionError, match="no parity"):
        assert_parity(run(optimizer=None), zero, ROW)
    with pytest.raises(AssertionError, match="no parity"):
        assert_parity(zero, run(optimizer=None), ROW)


def test_a_run_is_no_baseline_of_itself():
    """One run given for both sides is an error."""
    track = run()
    with pytest.raises(VacuousComparison, match="the candidate is the baseline"):
        assert_parity(track, track, ROW)


def test_an_optimizer_that_moves_nothing_is_an_error():
    """With a learning rate of zero the second step shows nothing."""
    still = run(optimizer=lambda params: torch.optim.SGD(params, lr=0.0))
    with pytest.raises(VacuousComparison, match="moved no parameter"):
        assert_parity(still, replace(still), ROW)

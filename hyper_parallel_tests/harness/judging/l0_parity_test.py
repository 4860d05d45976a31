"""Parity: what is recorded, what three independent assertions catch, and what the one report says."""

from __future__ import annotations

import copy
from dataclasses import replace

import pytest
import torch
from torch import nn

from hyper_parallel_tests.harness.judging.parity import (
    Track,
    VacuousComparison,
    assert_close,
    assert_differs,
    assert_equal,
    assert_parity,
    train,
)
from hyper_parallel_tests.harness.judging.tolerances import ledger
from hyper_parallel_tests.models.mlp import mlp, mlp_batch, mlp_loss

ROW = ledger["fsdp_1d_fp32"]
BATCHES = [mlp_batch(0, width=4), mlp_batch(1, width=4)]


def sgd(params) -> torch.optim.Optimizer:
    return torch.optim.SGD(params, lr=0.1, momentum=0.9)


def run(**options) -> Track:
    """Two steps of a small network; each call starts anew."""
    return train(mlp(width=4, depth=2), BATCHES, mlp_loss, **{"optimizer": sgd, **options})


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


# -- what is recorded


def test_train_records_each_step_as_a_plain_loop_has_it():
    """Losses, gradients and updated parameters are those of the loop written out."""
    track = run()
    model = mlp(width=4, depth=2)
    optimizer = sgd(model.parameters())
    for step, batch in zip(track.steps, BATCHES, strict=True):
        optimizer.zero_grad()
        loss = mlp_loss(model, batch)
        loss.backward()
        grads = {name: param.grad.clone() for name, param in model.named_parameters()}
        optimizer.step()
        assert step.loss == loss.item()
        assert_close(step.grads, grads, ledger["exact"])
        assert_close(step.params, dict(model.named_parameters()), ledger["exact"])
        flat = torch.cat([grad.double().flatten() for grad in grads.values()])
        assert_close(step.norm, flat.norm().item(), ledger["collectives_fp64"], what="norm")


def test_train_records_copies():
    """A step's tensors stay what they were when later steps change the model."""
    first, second = run().steps
    assert_differs(first.params, second.params, ledger["exact"])
    assert_differs(first.grads, second.grads, ledger["exact"])


def test_train_keeps_the_start():
    """The parameters before the first step are on record."""
    assert_close(run().start, dict(mlp(width=4, depth=2).named_parameters()), ledger["exact"])


def test_train_without_optimizer_records_gradients_only():
    """Without an optimizer one step is enough and nothing moves."""
    track = train(mlp(width=4), BATCHES[:1], mlp_loss)
    assert not track.updates
    assert track.steps[0].params == {}
    assert len(track.steps[0].grads) == 6


def test_train_wants_two_steps_of_an_optimizer():
    """One step cannot show that the update reaches the next forward."""
    with pytest.raises(ValueError, match="2 steps or more"):
        train(mlp(width=4), BATCHES[:1], mlp_loss, optimizer=sgd)


def test_train_takes_an_optimizer_as_it_is():
    """An optimizer that exists already is used, with its state."""
    model = mlp(width=4, depth=2)
    assert_parity(train(model, BATCHES, mlp_loss, optimizer=sgd(model.parameters())), run(), ledger["exact"])


def test_train_lets_the_engine_average_the_loss():
    """`average` decides what is on record and not what is trained."""
    track = run(average=lambda loss: loss * 2)
    assert [step.loss for step in track.steps] == [2 * step.loss for step in run().steps]
    assert_close(track.steps[1].params, run().steps[1].params, ledger["exact"])


def test_train_clips_between_backward_and_update():
    """What `before_update` does to the gradients is what is recorded and what the optimizer gets."""
    clipped = run(before_update=lambda model: nn.utils.clip_grad_norm_(model.parameters(), 0.5))
    assert_close(clipped.steps[0].norm, run().steps[0].norm, ROW, what="norm before clipping")
    flat = torch.cat([grad.flatten() for grad in clipped.steps[0].grads.values()])
    assert_close(flat.norm(), torch.tensor(0.5), ROW, what="norm after clipping")
    assert_differs(clipped.steps[0].params, run().steps[0].params, ROW)


def test_train_lets_loss_do_the_backward():
    """Micro-batches: `loss` accumulates by itself and `backward` has nothing left to do."""

    def in_two_parts(model, batch):
        total = torch.zeros(())
        for half in range(2):
            loss = mlp_loss(model, batch.part(half, 2)) / 2
            loss.backward()
            total += loss.detach()
        return total

    track = train(mlp(width=4, depth=2), BATCHES, in_two_parts, optimizer=sgd, backward=lambda loss: None)
    assert_parity(track, run(), ROW)


def test_train_reads_what_the_engine_says_the_optimizer_reads():
    """`params` and `grads` replace the module's own view."""
    master = [("w", torch.ones(2))]
    track = train(
        mlp(width=4),
        BATCHES[:1],
        mlp_loss,
        params=lambda: master,
        grads=lambda: [("w", torch.full((2,), 3.0))],
    )
    assert track.start["w"].tolist() == [1, 1]
    assert track.steps[0].grads["w"].tolist() == [3, 3]


def test_train_gathers_what_is_sharded():
    """A tensor that can be gathered is recorded in full."""

    class Sharded(torch.Tensor):
        def full_tensor(self) -> torch.Tensor:
            return torch.tensor([1.0, 2.0])

    shard = torch.ones(1).as_subclass(Sharded)
    track = train(mlp(width=4), BATCHES[:1], mlp_loss, params=lambda: [("w", shard)], grads=lambda: [("w", shard)])
    assert track.steps[0].grads["w"].tolist() == [1, 2]


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

    runs = [train(mlp(width=4, depth=2), BATCHES, tiny, optimizer=sgd) for _ in range(2)]
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


# -- single tensors


def test_assert_close_names_the_part():
    """Of a nest of tensors the part that differs is named by its path."""
    expected = {"a": torch.ones(2), "b": [torch.ones(2), torch.ones(3)]}
    wrong = {"a": torch.ones(2), "b": [torch.ones(2), torch.tensor([1.0, 1.0, 2.0])]}
    assert_close(expected, copy.deepcopy(expected), ledger["exact"])
    with pytest.raises(AssertionError) as caught:
        assert_close(wrong, expected, ROW, what="state")
    assert str(caught.value).splitlines()[0] == f"state differs with {ROW!r}, judged"
    assert "state[b][1]: 1 of 3 elements out of tolerance" in str(caught.value)
    assert "worst element [2]: got 2, expected 1" in str(caught.value)


def test_assert_close_uses_the_rows_relative_part():
    """Magnitude counts where the row says so, and nowhere else."""
    large, off = torch.tensor([1e6]), torch.tensor([1e6 + 0.5])
    assert_close(off, large, ledger["collectives_fp32"])
    with pytest.raises(AssertionError):
        assert_close(off, large, ROW)


@pytest.mark.parametrize("nothing", [torch.zeros(3), torch.ones(0), {}, [], 0.0], ids=repr)
def test_assert_close_refuses_to_compare_nothing(nothing):
    """Zeros and emptiness on both sides are an error unless said to be right."""
    with pytest.raises(VacuousComparison):
        assert_close(nothing, nothing, ROW)
    assert_close(nothing, nothing, ROW, zero_because="this is the point")


def test_assert_close_takes_numbers_and_keeps_integers_exact():
    """Plain numbers compare too; an integer is never nearly right."""
    assert_close(1.0, 1.0, ROW)
    assert_close(3, 3, ROW)
    with pytest.raises(AssertionError):
        assert_close(3, 4, ledger["collectives_bf16"])


def test_assert_equal_knows_no_tolerance():
    """Bits are compared, zeros and empty tensors too, and the report names the element."""
    assert_equal([torch.zeros(2), torch.empty(0, 3)], [torch.zeros(2), torch.empty(0, 3)])
    wrong = torch.zeros(2, 2)
    wrong[1, 0] = 1e-30
    with pytest.raises(AssertionError, match=r"message differs(.|\n)*\[1, 0\]"):
        assert_equal(wrong, torch.zeros(2, 2), what="message")
    with pytest.raises(AssertionError, match="shape"):
        assert_equal(torch.zeros(0, 3), torch.zeros(0, 2), what="message")


def test_assert_differs_wants_every_tensor_to_differ():
    """One tensor that agrees is named."""
    one, two = {"a": torch.ones(2), "b": torch.ones(2)}, {"a": torch.ones(2), "b": torch.full((2,), 2.0)}
    assert_differs(one["b"], two["b"], ROW)
    with pytest.raises(AssertionError, match=r"grads\[a\] must differ but agrees"):
        assert_differs(one, two, ROW, what="grads")

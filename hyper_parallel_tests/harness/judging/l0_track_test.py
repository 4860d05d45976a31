"""Training as it is recorded: each step's loss, norm, gradients and parameters, whoever does which part."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from hyper_parallel_tests.harness.judging.baseline import train_baseline
from hyper_parallel_tests.harness.judging.parity import Track, assert_close, assert_differs, assert_parity, train
from hyper_parallel_tests.harness.judging.tolerances import ledger
from hyper_parallel_tests.models.mlp import mlp, mlp_batch, mlp_loss

ROW = ledger["fsdp_1d_fp32"]
BATCHES = [mlp_batch(0, width=4), mlp_batch(1, width=4)]


def sgd(params) -> torch.optim.Optimizer:
    return torch.optim.SGD(params, lr=0.1, momentum=0.9)


def run(**options) -> Track:
    """Two steps of a small network; each call starts anew."""
    return train(mlp(width=4, depth=2), BATCHES, mlp_loss, **{"optimizer": sgd, **options})


def baseline() -> Track:
    """The same, in a clean process."""
    return train_baseline(mlp(width=4, depth=2), BATCHES, mlp_loss, optimizer=sgd)


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
    assert_parity(train(model, BATCHES, mlp_loss, optimizer=sgd(model.parameters())), baseline(), ledger["exact"])


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

    track = train(mlp(width=4, depth=2), BATCHES, in_two_parts, optimizer=sgd, backward=None)
    assert_parity(track, baseline(), ROW)


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

"""Repetition: every bit again, and the first one that is not is named."""

from __future__ import annotations

import itertools
import random

import pytest
import torch

from hyper_parallel_tests.harness.judging.comparison import VacuousComparison
from hyper_parallel_tests.harness.judging.determinism import assert_bitwise_repeatable
from hyper_parallel_tests.harness.judging.parity import train
from hyper_parallel_tests.models.mlp import mlp, mlp_batch, mlp_loss


def changing(*values):
    """A function that returns one of `values` after the other."""
    following = iter(values)
    return lambda: next(following)


def train_twice(model):
    batches = [mlp_batch(0), mlp_batch(1)]
    return train(model, batches, mlp_loss, optimizer=lambda params: torch.optim.AdamW(params))


def test_training_repeats():
    """A training run from fresh state is the same to the bit, and comes back as the result."""
    track = assert_bitwise_repeatable(train_twice, fresh=mlp)
    assert len(track.steps) == 2


def test_stale_state_is_noticed():
    """A model that is not made anew trains on, and the first value that shows it is named."""
    model = mlp()
    with pytest.raises(AssertionError, match=r"run 1 does not repeat run 0: first at result\.steps\[0\]\.loss"):
        assert_bitwise_repeatable(train_twice, fresh=lambda: model)


def test_random_numbers_start_alike():
    """Each run draws the same numbers from torch's and Python's global state."""
    assert_bitwise_repeatable(lambda: [torch.rand(4), torch.tensor(random.random())])


def test_another_generator_is_the_runs_own_business():
    """A generator that goes on over the runs is state, and noticed."""
    source = torch.Generator().manual_seed(1)
    with pytest.raises(AssertionError, match="4 of 4 elements, first"):
        assert_bitwise_repeatable(lambda: torch.rand(4, generator=source))


def test_one_bit_is_enough():
    """The smallest difference there is fails, with the element and both values."""
    one, next_one = torch.ones(2, 3), torch.ones(2, 3)
    next_one[1, 2] = torch.nextafter(next_one[1, 2], torch.tensor(2.0))
    with pytest.raises(AssertionError) as caught:
        assert_bitwise_repeatable(changing({"x": one}, {"x": next_one}))
    assert str(caught.value) == (
        "run 1 does not repeat run 0: first at result['x']: 1 of 6 elements, first [1, 2]: 1.0, then 1.0000001192092896"
    )


def test_the_sign_of_zero_is_a_bit():
    """Equal values of other bits are no repetition, and NaNs of the same bits are one."""
    with pytest.raises(AssertionError):
        assert_bitwise_repeatable(changing(torch.tensor(0.0), torch.tensor(-0.0)))
    assert_bitwise_repeatable(lambda: torch.tensor(float("nan")))


@pytest.mark.parametrize(
    ("first", "second", "said"),
    [
        (torch.ones(2), torch.ones(3), "torch.float32[2], then torch.float32[3]"),
        (torch.ones(2), torch.ones(2).double(), "torch.float32[2], then torch.float64[2]"),
        ([torch.ones(2)], [torch.ones(2), torch.ones(2)], "run 1 has result[1], run 0 has none"),
        ([torch.ones(2), torch.ones(2)], [torch.ones(2)], "run 1 has no result[1], run 0 has one"),
        ([torch.ones(2), 1], [torch.ones(2), 2], "first at result[1]: 1, then 2"),
        ([torch.ones(2), 1], [torch.ones(2), 1.0], "first at result[1]: 1, then 1.0"),
    ],
    ids=["shape", "dtype", "more", "fewer", "value", "type"],
)
def test_everything_returned_counts(first, second, said):
    """Shapes, dtypes, structure and plain values must repeat too."""
    with pytest.raises(AssertionError) as caught:
        assert_bitwise_repeatable(changing(first, second))
    assert said in str(caught.value)


def test_a_buffer_that_is_written_again_is_no_excuse():
    """A run that returns the same memory each time is held to what the first run left in it."""
    buffer, numbers = torch.zeros(2), itertools.count()
    with pytest.raises(AssertionError, match="2 of 2 elements"):
        assert_bitwise_repeatable(lambda: buffer.fill_(next(numbers)))


def test_a_later_run_counts_as_much_as_the_second():
    """With three runs the third is compared with the first."""
    with pytest.raises(AssertionError, match="run 2 does not repeat run 0"):
        assert_bitwise_repeatable(changing(torch.ones(1), torch.ones(1), torch.zeros(1)), times=3)


def test_nothing_to_compare_is_an_error():
    """No tensor, or one run only, proves nothing."""
    with pytest.raises(VacuousComparison):
        assert_bitwise_repeatable(lambda: None)
    with pytest.raises(ValueError, match="at least 2 runs"):
        assert_bitwise_repeatable(lambda: torch.ones(1), times=1)

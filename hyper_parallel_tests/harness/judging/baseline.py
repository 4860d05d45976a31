"""Trains baselines, where no engine has changed torch.

baseline = train_baseline(network(world), full_batches, loss, optimizer=sgd)
baseline = train_baseline(network(world), rows, loss, optimizer=sgd, average=mean_over_ranks, wrap=DDP)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor, nn

from hyper_parallel_tests.harness.judging.clean import in_clean_process
from hyper_parallel_tests.harness.judging.parity import Track, train

__all__ = ["train_baseline"]


def train_baseline(
    model: nn.Module,
    batches: Sequence[Any],
    loss: Callable[[nn.Module, Any], Tensor],
    *,
    wrap: Callable[[nn.Module], nn.Module] | None = None,
    **options: Any,
) -> Track:
    """Train a copy of a plain model as `train` does, in a clean process; all ranks call this together.

    Args:
        model: not wrapped and without gradients; it stays as it is.
        batches, loss: as for `train`; functions are those of modules or partials of them, see `in_clean_process`.
        wrap: makes of the model what is trained, such as DistributedDataParallel, over as many ranks.
        options: optimizer, average, backward, before_update of `train`.

    Raises:
        BaselineError, TypeError: see `in_clean_process`.
    """
    return in_clean_process(_train, model, batches, loss, wrap, options)


def _train(model: nn.Module, batches: Any, loss: Any, wrap: Any, options: dict[str, Any]) -> Track:
    return train(model if wrap is None else wrap(model), batches, loss, **options)

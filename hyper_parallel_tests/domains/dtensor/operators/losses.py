"""Rows of the operator matrix: losses with their options. The mean of the ranks' means is the classic silent error."""

from __future__ import annotations

from functools import partial

import torch.nn.functional as F

from hyper_parallel_tests.domains.dtensor.operators.table import (
    Operator,
    index,
    log_probability,
    normal,
    positive,
    probability,
)

_REDUCTIONS = ("mean", "sum")
_LOGITS = (normal("nc"), index("n", "c"))
_IGNORED = (normal("nc"), index("n", "c", ignored=True))
_WEIGHTED = (*_IGNORED, positive("c", constant=True))


def _weighted(loss, **options):
    return lambda scores, targets, weight: loss(scores, targets, weight=weight, **options)


CLASSES = tuple(
    row
    for reduction in _REDUCTIONS
    for row in (
        Operator(f"cross_entropy_{reduction}", partial(F.cross_entropy, reduction=reduction), _LOGITS, on_four=True),
        Operator(f"cross_entropy_ignored_{reduction}", partial(F.cross_entropy, reduction=reduction), _IGNORED),
        Operator(f"cross_entropy_weighted_{reduction}", _weighted(F.cross_entropy, reduction=reduction), _WEIGHTED),
        Operator(
            f"cross_entropy_smoothed_{reduction}",
            partial(F.cross_entropy, reduction=reduction, label_smoothing=0.2),
            _IGNORED,
        ),
        Operator(
            f"cross_entropy_smoothed_weighted_{reduction}",
            _weighted(F.cross_entropy, reduction=reduction, label_smoothing=0.2),
            _WEIGHTED,
        ),
        Operator(
            f"cross_entropy_ignore_one_{reduction}",
            partial(F.cross_entropy, reduction=reduction, ignore_index=1),
            _LOGITS,
        ),
        Operator(
            f"cross_entropy_probabilities_{reduction}",
            partial(F.cross_entropy, reduction=reduction),
            (normal("nc"), probability("nc")),
        ),
        Operator(
            f"nll_{reduction}", partial(F.nll_loss, reduction=reduction), (log_probability("nc"), index("n", "c"))
        ),
        Operator(
            f"nll_weighted_{reduction}",
            _weighted(F.nll_loss, reduction=reduction),
            (log_probability("nc"), index("n", "c", ignored=True), positive("c", constant=True)),
        ),
        Operator(
            f"nll_of_pixels_{reduction}",
            partial(F.nll_loss, reduction=reduction),
            (normal("nchw"), index("nhw", "c", ignored=True)),
        ),
    )
) + (
    Operator("cross_entropy_none", partial(F.cross_entropy, reduction="none"), _LOGITS),
    Operator(
        "cross_entropy_smoothed_weighted_none",
        _weighted(F.cross_entropy, reduction="none", label_smoothing=0.2),
        _WEIGHTED,
    ),
    Operator(
        "nll_of_pixels_none",
        partial(F.nll_loss, reduction="none"),
        (normal("nchw"), index("nhw", "c", ignored=True)),
    ),
)

DISTANCES = tuple(
    row
    for reduction in _REDUCTIONS
    for row in (
        Operator(f"mse_{reduction}", partial(F.mse_loss, reduction=reduction), (normal("ab"), normal("ab"))),
        Operator(f"l1_{reduction}", partial(F.l1_loss, reduction=reduction), (normal("ab"), normal("ab"))),
        Operator(
            f"smooth_l1_{reduction}",
            partial(F.smooth_l1_loss, reduction=reduction, beta=0.7),
            (normal("ab"), normal("ab")),
        ),
        Operator(
            f"huber_{reduction}", partial(F.huber_loss, reduction=reduction, delta=0.7), (normal("ab"), normal("ab"))
        ),
        Operator(
            f"bce_with_logits_{reduction}",
            partial(F.binary_cross_entropy_with_logits, reduction=reduction),
            (normal("ab"), probability("ab")),
        ),
        Operator(
            f"bce_with_logits_weighted_{reduction}",
            lambda x, y, weight, positives, reduction=reduction: F.binary_cross_entropy_with_logits(
                x, y, weight=weight, pos_weight=positives, reduction=reduction
            ),
            (normal("ab"), probability("ab"), positive("ab", constant=True), positive("b", constant=True)),
        ),
        Operator(
            f"bce_{reduction}",
            partial(F.binary_cross_entropy, reduction=reduction),
            (probability("ab"), probability("ab", constant=True)),
        ),
    )
) + (
    Operator("mse_none", partial(F.mse_loss, reduction="none"), (normal("ab"), normal("ab"))),
    Operator("gaussian_nll", partial(F.gaussian_nll_loss, full=True), (normal("ab"), normal("ab"), positive("ab"))),
    Operator("poisson_nll", F.poisson_nll_loss, (normal("ab"), positive("ab"))),
    Operator("kl_div_mean", F.kl_div, (log_probability("ab"), probability("ab"))),
    Operator("kl_div_batchmean", partial(F.kl_div, reduction="batchmean"), (log_probability("ab"), probability("ab"))),
    Operator(
        "kl_div_batchmean_log",
        partial(F.kl_div, reduction="batchmean", log_target=True),
        (log_probability("ab"), log_probability("ab")),
    ),
)

"""Rows of the operator matrix: reductions over all dimensions, one, the sharded one or another."""

from __future__ import annotations

import torch

from hyper_parallel_tests.domains.dtensor.operators.table import Operator, integer, mask, normal, positive

_NOT_EMPTY = ("even", "uneven")
"""Of nothing there is no extreme. Where that is one rank's error, others wait for seconds: `max` stands for all."""

LINEAR = (
    Operator("sum", torch.sum, (normal("ab"),), on_four=True),
    Operator("sum_rows", lambda x: x.sum(0), (normal("ab"),)),
    Operator("sum_last_kept", lambda x: x.sum(-1, keepdim=True), (normal("abc"),)),
    Operator("sum_two", lambda x: x.sum((0, 2)), (normal("abc"),)),
    Operator("sum_of_no_dims", lambda x: x.sum(()), (normal("ab"),)),
    Operator(
        "sum_of_no_dims_kept", lambda x: x.sum((), keepdim=True), (normal("ab"),), placed=("S0",), sizes=("even",)
    ),
    Operator("sum_integers", torch.sum, (integer("ab"),)),
    Operator("sum_to_float", lambda x: x.sum(1, dtype=torch.float64), (integer("ab"),)),
    Operator("mean", torch.mean, (normal("ab"),)),
    Operator("mean_rows", lambda x: x.mean(0), (normal("ab"),), on_four=True),
    Operator("mean_last_kept", lambda x: x.mean(-1, keepdim=True), (normal("abc"),)),
    Operator("mean_two", lambda x: x.mean((0, 2)), (normal("abc"),)),
    Operator("mean_of_mean", lambda x: x.mean(0).mean(), (normal("ab"),)),
    Operator("mean_times_mean", lambda x: x.mean() * x.mean(), (normal("ab"),)),
    Operator("sum_squared", lambda x: x.sum(0) ** 2, (normal("ab"),)),
    Operator("nansum", torch.nansum, (normal("ab"),)),
)

EXTREMES = (
    Operator("max", torch.max, (normal("ab"),)),
    Operator("min", torch.min, (normal("ab"),), sizes=_NOT_EMPTY),
    Operator("max_rows", lambda x: x.max(0), (normal("ab"),), on_four=True, sizes=_NOT_EMPTY),
    Operator("min_last_kept", lambda x: x.min(-1, keepdim=True), (normal("ab"),), sizes=_NOT_EMPTY),
    Operator("amax", lambda x: x.amax(0), (normal("ab"),), sizes=_NOT_EMPTY),
    Operator("amin", lambda x: x.amin((0, 1)), (normal("abc"),), sizes=_NOT_EMPTY),
    Operator("amax_all", torch.amax, (normal("ab"),), sizes=_NOT_EMPTY),
    Operator("amin_last", lambda x: x.amin(-1), (normal("ab"),), sizes=_NOT_EMPTY),
    Operator("argmax", torch.argmax, (normal("ab"),), sizes=_NOT_EMPTY),
    Operator("argmax_rows", lambda x: x.argmax(0), (normal("ab"),), sizes=_NOT_EMPTY),
    Operator("argmin_last_kept", lambda x: x.argmin(-1, keepdim=True), (normal("ab"),), sizes=_NOT_EMPTY),
    Operator("aminmax", lambda x: torch.aminmax(x, dim=0), (normal("ab"),), sizes=_NOT_EMPTY),
    Operator("median_rows", lambda x: x.median(0), (normal("ab"),), sizes=_NOT_EMPTY),
    Operator("all", torch.all, (mask("ab"),)),
    Operator("all_rows", lambda x: x.all(0), (mask("ab"),)),
    Operator("any", torch.any, (mask("ab"),)),
    Operator("any_last", lambda x: x.any(-1), (mask("ab"),)),
    Operator("count_nonzero", torch.count_nonzero, (mask("ab"),)),
)

MOMENTS = (
    Operator("prod", torch.prod, (positive("ab"),)),
    Operator("prod_rows", lambda x: x.prod(0), (positive("ab"),)),
    Operator("prod_last_kept", lambda x: x.prod(-1, keepdim=True), (positive("ab"),)),
    Operator("var", torch.var, (normal("ab"),)),
    Operator("var_rows", lambda x: x.var(0, correction=0), (normal("ab"),), on_four=True),
    Operator("var_last_kept", lambda x: x.var(-1, keepdim=True, correction=0), (normal("ab"),)),
    Operator("std", torch.std, (normal("ab"),)),
    Operator("std_two", lambda x: x.std((0, 2)), (normal("abc"),)),
    Operator("var_mean", lambda x: torch.var_mean(x, 1, correction=0), (normal("ab"),)),
    Operator("norm", torch.norm, (normal("ab"),)),
    Operator("vector_norm", torch.linalg.vector_norm, (normal("ab"),), on_four=True),
    Operator("vector_norm_rows", lambda x: torch.linalg.vector_norm(x, dim=0), (normal("ab"),)),
    Operator("vector_norm_last_kept", lambda x: torch.linalg.vector_norm(x, dim=-1, keepdim=True), (normal("ab"),)),
    Operator("norm_1", lambda x: torch.linalg.vector_norm(x, 1), (normal("ab"),)),
    Operator("norm_3_rows", lambda x: torch.linalg.vector_norm(x, 3, 0), (normal("ab"),)),
    Operator("norm_inf", lambda x: torch.linalg.vector_norm(x, float("inf")), (normal("ab"),), sizes=_NOT_EMPTY),
    Operator("norm_minus_inf", lambda x: torch.linalg.vector_norm(x, -float("inf")), (normal("ab"),), sizes=_NOT_EMPTY),
    Operator("norm_0", lambda x: torch.linalg.vector_norm(x, 0), (normal("ab"),)),
    Operator("logsumexp", lambda x: torch.logsumexp(x, 0), (normal("ab"),)),
    Operator("logsumexp_last_kept", lambda x: torch.logsumexp(x, -1, keepdim=True), (normal("ab"),)),
)

SCANS = (
    Operator("cumsum", lambda x: x.cumsum(0), (normal("ab"),)),
    Operator("cumsum_last", lambda x: x.cumsum(-1), (normal("ab"),)),
    Operator("cumsum_middle", lambda x: x.cumsum(1), (normal("abc"),)),
    Operator("cumprod", lambda x: x.cumprod(0), (positive("ab"),)),
    Operator("cummax", lambda x: x.cummax(0), (normal("ab"),)),
    Operator("logcumsumexp", lambda x: x.logcumsumexp(0), (normal("ab"),)),
    Operator("logcumsumexp_last", lambda x: x.logcumsumexp(-1), (normal("ab"),)),
)

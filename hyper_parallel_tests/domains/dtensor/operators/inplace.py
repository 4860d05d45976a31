"""Rows of the operator matrix: operators that write into their first operand, which keeps its placement."""

from __future__ import annotations

import torch

from hyper_parallel_tests.domains.dtensor.operators.table import Operator, mask, normal, positive

_KEPT = ("R", "S0", "S1")
_PAIRS = ("R_R", "S0_S0", "S1_S1", "S0_R", "S1_R", "S0_S1", "S0_P", "R_P", "R_S0")


def _alone(name, change):
    return Operator(name, lambda x: change(x.clone()), (normal("ab"),), placed=_KEPT)


def _with(name, change, values=normal):
    return Operator(name, lambda x, y: change(x.clone(), y), (normal("ab"), values("ab")), placed=_PAIRS)


def _changed(x, write):
    write(x)
    return x


IN_PLACE = (
    _alone("add_scalar_", lambda x: x.add_(1.5)),
    _alone("mul_scalar_", lambda x: x.mul_(-2)),
    _alone("exp_", torch.Tensor.exp_),
    _alone("relu_", torch.relu_),
    _alone("clamp_", lambda x: x.clamp_(-0.5, 0.5)),
    _alone("zero_then_add_", lambda x: x.mul_(2).sub_(0.5)),
    _alone("fill_", lambda x: x.detach().fill_(1.5)),
    _alone("zero_and_one_", lambda x: x.detach().zero_().add_(1)),
    _alone("tril_", lambda x: x.tril_()),
    _alone("mul_slice_", lambda x: _changed(x, lambda y: y[:1].mul_(3))),
    _alone("zero_columns_", lambda x: _changed(x, lambda y: y[:, 1:].zero_())),
    _alone("set_row_", lambda x: _changed(x.detach().clone(), lambda y: y.__setitem__(0, 5.0))),
    _with("add_", torch.Tensor.add_),
    _with("sub_scaled_", lambda x, y: x.sub_(y, alpha=0.3)),
    _with("mul_", torch.Tensor.mul_),
    _with("div_", torch.Tensor.div_, positive),
    _with("copy_", torch.Tensor.copy_),
    _with("lerp_", lambda x, y: x.lerp_(y, 0.3)),
    _with("addcmul_", lambda x, y: x.addcmul_(y, y, value=0.3)),
    _with("addcdiv_", lambda x, y: x.addcdiv_(y, y * y, value=0.3), positive),
    Operator(
        "masked_fill_",
        lambda x, m: x.clone().masked_fill_(m, -3.0),
        (normal("ab"), mask("ab")),
        placed=("R_R", "S0_S0", "S1_S1", "S0_R"),
    ),
    Operator(
        "add_vector_",
        lambda x, y: x.clone().add_(y),
        (normal("ab"), normal("b")),
        placed=("R_R", "S0_R", "S1_S0", "S1_R", "S0_S0", "S0_P"),
    ),
)

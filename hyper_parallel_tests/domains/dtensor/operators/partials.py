"""Rows of the operator matrix: parts that are not yet reduced, carried through further operators.

What commutes with the reduction may leave a partial result partial; all else must reduce first.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F

from hyper_parallel_tests.domains.dtensor.operators.table import Operator, mask, normal, positive

_REDUCTIONS = ("P", "Pavg", "Pmax")
_PAIRS = ("P_P", "Pavg_Pavg", "Pmax_Pmax", "P_Pavg", "Pmax_Pmin", "P_R", "P_S0", "Pavg_R", "Pmax_R", "Pmin_S1")


def _one(name, call, values=normal, placed=_REDUCTIONS, **options):
    return Operator(name, call, (values("ab"),), placed=placed, **options)


def _two(name, call, values=normal):
    return Operator(name, call, (normal("ab"), values("ab")), placed=_PAIRS)


CARRIED = (
    _one("p_relu", torch.relu),
    _one("p_exp", torch.exp),
    _one("p_abs", torch.abs, placed=(*_REDUCTIONS, "Pmin")),
    _one("p_square", torch.square),
    _one("p_times_itself", lambda p: p * p),
    _one("p_plus_itself", lambda p: p + p),
    _one("p_minus_itself_twice", lambda p: p - 2 * p),
    _one("p_plus_one", lambda p: p + 1),
    _one("one_plus_p", lambda p: 1 + p),
    _one("p_minus_one", lambda p: p - 1),
    _one("one_minus_p", lambda p: 1 - p),
    _one("p_times_two", lambda p: p * 2),
    _one("p_times_minus_two", lambda p: p * -2, placed=(*_REDUCTIONS, "Pmin")),
    _one("p_over_three", lambda p: p / 3),
    _one("p_over_minus_three", lambda p: p / -3),
    _one("three_over_p", lambda p: 3 / p, positive),
    _one("minus_p", lambda p: -p, placed=(*_REDUCTIONS, "Pmin")),
    _one("p_clone", lambda p: p.clone()),
    _one("p_to_float32", lambda p: p.to(torch.float32), tolerance="dtensor_operators_fp32"),
    _one("p_to_integer", lambda p: p.to(torch.int64)),
    _one("p_greater_zero", lambda p: p > 0),
    _one("p_clamp", lambda p: p.clamp(min=0.2)),
    _one("p_floor", torch.floor),
    _one("p_round", torch.round),
    _one("p_t", torch.t),
    _one("p_view", lambda p: p.view(-1)),
    _one("p_select", lambda p: p[0]),
    _one("p_slice", lambda p: p[:, 1:]),
    _one("p_split", lambda p: p.split(2)),
    _one("p_cat", lambda p: torch.cat([p, p])),
    _one("p_stack", lambda p: torch.stack([p, p])),
    _one("p_pad_zero", lambda p: F.pad(p, (1, 1))),
    _one("p_pad_one", lambda p: F.pad(p, (1, 1), value=1.0)),
    _one("p_expand", lambda p: p.unsqueeze(0).expand(3, -1, -1)),
    _one("p_repeat", lambda p: p.repeat(2, 1)),
    _one("p_tril", torch.tril),
    _one("p_flip", lambda p: p.flip(0)),
    _one("p_roll", lambda p: p.roll(1, 0)),
    _one("p_masked_fill", lambda p: p.masked_fill(p > 0, 1.0)),
    _one("p_sum", torch.sum),
    _one("p_sum_rows", lambda p: p.sum(0)),
    _one("p_mean", torch.mean),
    _one("p_mean_rows", lambda p: p.mean(0)),
    _one("p_max", torch.max, placed=(*_REDUCTIONS, "Pmin")),
    _one("p_min", torch.min, placed=(*_REDUCTIONS, "Pmin")),
    _one("p_amax_rows", lambda p: p.amax(0)),
    _one("p_amin_rows", lambda p: p.amin(0)),
    _one("p_prod", torch.prod),
    _one("p_var", torch.var),
    _one("p_norm", torch.linalg.vector_norm),
    _one("p_norm_1", lambda p: torch.linalg.vector_norm(p, 1)),
    _one("p_norm_inf", lambda p: torch.linalg.vector_norm(p, float("inf")), placed=(*_REDUCTIONS, "Pmin")),
    _one("p_cumsum", lambda p: p.cumsum(0)),
    _one("p_softmax", lambda p: p.softmax(-1)),
    _one("p_layer_norm", lambda p: F.layer_norm(p, p.shape[-1:])),
    _one("p_sort", lambda p: p.sort(-1)),
    _one("p_argmax", lambda p: p.argmax(-1)),
    _one("p_zeros_like", lambda p: torch.zeros_like(p) + 1.5),
    _one("p_ones_like", torch.ones_like),
    _one("p_full_like", lambda p: torch.full_like(p, 2.5)),
    _one("p_new_ones", lambda p: p.new_ones(p.shape)),
)

COMBINED = (
    _two("p_plus_q", torch.add),
    _two("p_minus_q", torch.sub),
    _two("p_times_q", torch.mul),
    _two("p_over_q", torch.div, positive),
    _two("p_maximum_q", torch.maximum),
    _two("p_minimum_q", torch.minimum),
    _two("p_plus_q_scaled", lambda p, q: torch.add(p, q, alpha=-2.0)),
    _two("p_matmul_q", lambda p, q: p @ q.t()),
    _two("q_matmul_p", lambda p, q: q.t() @ p),
    _two("p_cat_q", lambda p, q: torch.cat([p, q])),
    _two("p_stack_q", lambda p, q: torch.stack([p, q])),
    _two("p_lerp_q", lambda p, q: torch.lerp(p, q, 0.3)),
    _two("p_where_q", lambda p, q: torch.where(q > 0, p, q)),
    _two("p_mse_q", F.mse_loss),
    _two("p_less_q", torch.lt),
    _two("p_addcmul_q", lambda p, q: torch.addcmul(p, p, q)),
    Operator(
        "p_masked",
        lambda p, m: p.masked_fill(m, 0.0),
        (normal("ab"), mask("ab")),
        placed=tuple(f"{one}_{other}" for one in _REDUCTIONS for other in ("R", "S0")),
    ),
    Operator(
        "p_masked_one",
        lambda p, m: p.masked_fill(m, 1.0),
        (normal("ab"), mask("ab")),
        placed=tuple(f"{one}_{other}" for one in _REDUCTIONS for other in ("R", "S0")),
    ),
    Operator(
        "p_addmm",
        torch.addmm,
        (normal("ij"), normal("ik"), normal("kj")),
        placed=("P_R_R", "P_S1_S0", "Pavg_R_R", "Pmax_R_R", "P_S0_R", "P_P_R", "R_P_R", "R_Pavg_R", "R_S1_S0"),
    ),
    Operator(
        "p_linear_bias",
        F.linear,
        (normal("ik"), normal("jk"), normal("j")),
        placed=("S1_S1_R", "S1_S1_P", "P_R_R", "P_R_P", "Pavg_R_R", "Pmax_R_R", "R_P_R", "R_R_P", "R_R_Pmax"),
    ),
    Operator(
        "p_relu_after_linear",
        lambda x, w, b: F.linear(x, w, b).relu(),
        (normal("ik"), normal("jk"), normal("j")),
        placed=("S1_S1_R", "S1_S1_P", "P_R_R"),
    ),
    Operator(
        "p_scaled_by_scalar",
        torch.mul,
        (normal("ab"), normal("")),
        placed=tuple(f"{one}_{other}" for one in _REDUCTIONS for other in ("R", "P")),
    ),
)

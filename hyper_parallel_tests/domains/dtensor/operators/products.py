"""Rows of the operator matrix: products of matrices, and attention."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from hyper_parallel_tests.domains.dtensor.operators.table import Operator, mask, normal

_ATTENDED = (normal("bhqd"), normal("bhkd"), normal("bhke"))

PRODUCTS = (
    Operator("mm", torch.mm, (normal("ik"), normal("kj")), cross=True, on_four=True),
    Operator("matmul_batched_left", torch.matmul, (normal("bik"), normal("kj")), cross=True),
    Operator("mv", torch.mv, (normal("ik"), normal("k")), cross=True),
    Operator("dot", torch.dot, (normal("k"), normal("k")), cross=True),
    Operator("bmm", torch.bmm, (normal("bik"), normal("bkj")), cross=True, on_four=True),
    Operator("matmul_of_four", torch.matmul, (normal("bhik"), normal("bhkj"))),
    Operator("outer", torch.outer, (normal("i"), normal("j"))),
    Operator("addmm", torch.addmm, (normal("ij"), normal("ik"), normal("kj"))),
    Operator("addmm_vector", torch.addmm, (normal("j"), normal("ik"), normal("kj"))),
    Operator(
        "addmm_scaled",
        lambda c, a, b: torch.addmm(c, a, b, beta=0.5, alpha=1.5),
        (normal("ij"), normal("ik"), normal("kj")),
    ),
    Operator("baddbmm", torch.baddbmm, (normal("bij"), normal("bik"), normal("bkj"))),
    Operator("linear", F.linear, (normal("ik"), normal("jk")), cross=True),
    Operator("linear_bias", F.linear, (normal("ik"), normal("jk"), normal("j")), on_four=True),
    Operator("linear_of_three", F.linear, (normal("bik"), normal("jk"), normal("j"))),
    Operator("linear_transposed", lambda x, w: x @ w.t(), (normal("ik"), normal("jk"))),
    Operator("einsum_heads", lambda q, k: torch.einsum("bihd,bjhd->bhij", q, k), (normal("bihd"), normal("bjhd"))),
    Operator("einsum_trace", lambda a, b: torch.einsum("ij,ij->", a, b), (normal("ij"), normal("ij"))),
    Operator("einsum_outer", lambda a, b: torch.einsum("i,j->ij", a, b), (normal("i"), normal("j"))),
)

ATTENTION = (
    Operator("attention", F.scaled_dot_product_attention, _ATTENDED),
    Operator(
        "attention_causal",
        lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True),
        (normal("bhqd"), normal("bhqd"), normal("bhqd")),
    ),
    Operator(
        "attention_masked",
        lambda q, k, v, m: F.scaled_dot_product_attention(q, k, v, attn_mask=m),
        (*_ATTENDED, normal("qk")),
    ),
    Operator(
        "attention_bool_mask",
        lambda q, k, v, m: F.scaled_dot_product_attention(q, k, v, attn_mask=m | ~m[:, :1]),
        (*_ATTENDED, mask("qk")),
    ),
)

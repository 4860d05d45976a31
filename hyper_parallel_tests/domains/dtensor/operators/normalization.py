"""Rows of the operator matrix: operators that normalise over a dimension, which no rank may do by itself."""

from __future__ import annotations

import torch.nn.functional as F

from hyper_parallel_tests.domains.dtensor.operators.table import Operator, normal, positive

NORMALIZATION = (
    Operator("softmax", lambda x: F.softmax(x, -1), (normal("abc"),), on_four=True),
    Operator("softmax_first", lambda x: F.softmax(x, 0), (normal("ab"),)),
    Operator("softmax_middle", lambda x: F.softmax(x, 1), (normal("abc"),)),
    Operator("softmin", lambda x: F.softmin(x, -1), (normal("ab"),)),
    Operator("log_softmax", lambda x: F.log_softmax(x, -1), (normal("abc"),)),
    Operator("log_softmax_first", lambda x: F.log_softmax(x, 0), (normal("ab"),)),
    Operator(
        "layer_norm",
        lambda x, w, b: F.layer_norm(x, w.shape, w, b),
        (normal("abc"), positive("c"), normal("c")),
        on_four=True,
    ),
    Operator("layer_norm_plain", lambda x: F.layer_norm(x, x.shape[-1:]), (normal("abc"),)),
    Operator("layer_norm_weight", lambda x, w: F.layer_norm(x, w.shape, w), (normal("ab"), positive("b"))),
    Operator(
        "layer_norm_two", lambda x, w, b: F.layer_norm(x, w.shape, w, b), (normal("abc"), positive("bc"), normal("bc"))
    ),
    Operator("rms_norm", lambda x, w: F.rms_norm(x, w.shape, w), (normal("abc"), positive("c"))),
    Operator("rms_norm_plain", lambda x: F.rms_norm(x, x.shape[-1:]), (normal("abc"),)),
    Operator(
        "group_norm",
        lambda x, w, b: F.group_norm(x, 2, w, b),
        (normal("nac"), positive("a"), normal("a")),
        placed=("S0_R_R", "P_R_R"),
        sizes=("even",),
    ),
    Operator("normalize", lambda x: F.normalize(x, dim=-1), (normal("ab"),)),
    Operator("normalize_first", lambda x: F.normalize(x, dim=0), (normal("ab"),)),
    Operator("cosine_similarity", lambda x, y: F.cosine_similarity(x, y, dim=-1), (normal("ab"), normal("ab"))),
    Operator("glu", F.glu, (normal("ab"),), placed=("R", "S0", "P")),
)

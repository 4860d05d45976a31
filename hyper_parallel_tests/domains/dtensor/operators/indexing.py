"""Rows of the operator matrix: operators that look up or write at indices."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from hyper_parallel_tests.domains.dtensor.operators.table import Operator, index, mask, normal

LOOKUPS = (
    Operator("embedding", F.embedding, (index("ab", "v"), normal("vd")), cross=True, on_four=True),
    Operator("embedding_padding", lambda i, w: F.embedding(i, w, padding_idx=0), (index("ab", "v"), normal("vd"))),
    Operator(
        "embedding_twice", lambda i, w: F.embedding(i, w) + F.embedding(i, w) ** 2, (index("a", "v"), normal("vd"))
    ),
    Operator("embedding_tied", lambda i, w: F.embedding(i, w) @ w.t(), (index("a", "v"), normal("vd"))),
    Operator("index_select", lambda x, i: x.index_select(0, i), (normal("ab"), index("n", "a")), cross=True),
    Operator("index_select_last", lambda x, i: x.index_select(-1, i), (normal("ab"), index("n", "b"))),
    Operator("index", lambda x, i: x[i], (normal("ab"), index("n", "a"))),
    Operator("index_last", lambda x, i: x[:, i], (normal("ab"), index("n", "b"))),
    Operator("index_two", lambda x, i, j: x[i, j], (normal("ab"), index("n", "a"), index("n", "b"))),
    Operator("gather", lambda x, i: x.gather(0, i), (normal("ab"), index("nb", "a"))),
    Operator("gather_last", lambda x, i: x.gather(-1, i), (normal("ab"), index("an", "b")), cross=True, on_four=True),
    Operator("take_along_dim", lambda x, i: torch.take_along_dim(x, i, 1), (normal("ab"), index("an", "b"))),
    Operator("one_hot", lambda i: F.one_hot(i, 50), (index("ab", "a"),)),
    Operator("masked_select", torch.masked_select, (normal("ab"), mask("ab"))),
)

WRITES = (
    Operator("scatter", lambda x, i, y: x.scatter(0, i[:1], y[:1]), (normal("ab"), index("nb", "a"), normal("nb"))),
    Operator("scatter_value", lambda x, i: x.scatter(-1, i[:, :1], 2.5), (normal("ab"), index("an", "b"))),
    Operator("scatter_add", lambda x, i, y: x.scatter_add(0, i, y), (normal("ab"), index("nb", "a"), normal("nb"))),
    Operator(
        "scatter_add_last", lambda x, i, y: x.scatter_add(-1, i, y), (normal("ab"), index("an", "b"), normal("an"))
    ),
    Operator("index_add", lambda x, i, y: x.index_add(0, i, y), (normal("ab"), index("n", "a"), normal("nb"))),
    Operator(
        "index_copy", lambda x, i, y: x.index_copy(0, i[:1], y[:1]), (normal("ab"), index("n", "a"), normal("nb"))
    ),
    Operator("index_fill", lambda x, i: x.index_fill(0, i, 1.5), (normal("ab"), index("n", "a"))),
    Operator(
        "index_put",
        lambda x, i, y: x.index_put((i,), y, accumulate=True),
        (normal("ab"), index("n", "a"), normal("nb")),
    ),
    Operator("slice_scatter", lambda x, y: x.slice_scatter(y, 1, 0, y.shape[1]), (normal("ab"), normal("ab"))),
    Operator("select_scatter", lambda x, y: x.select_scatter(y, 0, 0), (normal("ab"), normal("b"))),
    Operator("masked_scatter", lambda x, m, y: x.masked_scatter(m, y), (normal("ab"), mask("ab"), normal("ab"))),
)

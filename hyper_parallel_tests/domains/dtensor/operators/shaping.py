"""Rows of the operator matrix: operators that change the shape, join, divide or select, and compute nothing."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from hyper_parallel_tests.domains.dtensor.operators.table import Operator, normal

VIEWS = (
    Operator("view_flat", lambda x: x.view(-1), (normal("ab"),)),
    Operator("reshape_flat_of_three", lambda x: x.reshape(-1), (normal("abc"),)),
    Operator("flatten_first_two", lambda x: x.flatten(0, 1), (normal("abc"),), on_four=True),
    Operator("flatten_last_two", lambda x: x.flatten(1), (normal("abc"),)),
    Operator("unflatten_first", lambda x: x.unflatten(0, (-1, 1)), (normal("ab"),)),
    Operator("view_split_last", lambda x: x.view(x.shape[0], -1, 1), (normal("ab"),)),
    Operator("view_heads", lambda x: x.view(*x.shape[:2], 2, -1), (normal("abc"),), placed=("R", "S0", "S1", "P")),
    Operator("view_heads_joined", lambda x: x.view(*x.shape[:2], -1), (normal("abcd"),)),
    Operator("view_same", lambda x: x.view(x.shape), (normal("ab"),)),
    Operator("view_leading_one", lambda x: x.view(1, *x.shape), (normal("ab"),)),
    Operator("reshape_of_transposed", lambda x: x.t().reshape(-1), (normal("ab"),)),
    Operator("flatten_and_back", lambda x: x.flatten(0, 1).view(x.shape), (normal("abc"),)),
    Operator("permute", lambda x: x.permute(2, 0, 1), (normal("abc"),), on_four=True),
    Operator("transpose", lambda x: x.transpose(0, -1), (normal("abc"),)),
    Operator("t", torch.t, (normal("ab"),)),
    Operator("movedim", lambda x: x.movedim(0, -1), (normal("abc"),)),
    Operator("unsqueeze_first", lambda x: x.unsqueeze(0), (normal("ab"),)),
    Operator("unsqueeze_middle", lambda x: x.unsqueeze(1), (normal("ab"),)),
    Operator("unsqueeze_last", lambda x: x.unsqueeze(-1), (normal("ab"),)),
    Operator("squeeze", lambda x: x.unsqueeze(1).squeeze(1), (normal("ab"),)),
    Operator("squeeze_all", lambda x: x.unsqueeze(1).squeeze(), (normal("ab"),)),
    Operator("squeeze_nothing", lambda x: x.squeeze(0), (normal("ab"),)),
    Operator("expand", lambda x: x.unsqueeze(0).expand(3, -1, -1), (normal("ab"),)),
    Operator("expand_inner", lambda x: x.unsqueeze(1).expand(-1, 3, -1), (normal("ab"),)),
    Operator("expand_as", lambda x, y: x.expand_as(y), (normal("b"), normal("ab"))),
    Operator("broadcast_to", lambda x: torch.broadcast_to(x, (3, *x.shape)), (normal("ab"),)),
    Operator("repeat", lambda x: x.repeat(2, 3), (normal("ab"),)),
    Operator("repeat_interleave", lambda x: x.repeat_interleave(2, 0), (normal("ab"),)),
    Operator("tile", lambda x: x.tile(2), (normal("ab"),)),
    Operator("diagonal", lambda x: x.diagonal(0, 1, 2), (normal("abb"),), placed=("R", "S0", "P")),
    Operator(
        "view_as_complex",
        lambda x: torch.view_as_real(torch.view_as_complex(torch.stack([x, 2 * x], -1))),
        (normal("ab"),),
    ),
)

JOINS = (
    Operator("cat_rows", lambda x, y: torch.cat([x, y]), (normal("ac"), normal("bc")), cross=True, on_four=True),
    Operator("cat_columns", lambda x, y: torch.cat([x, y], -1), (normal("ab"), normal("ac"))),
    Operator("cat_three", lambda x, y, z: torch.cat([x, y, z]), (normal("ad"), normal("bd"), normal("cd"))),
    Operator("cat_of_one", lambda x: torch.cat([x, x * 2]), (normal("ab"),)),
    Operator("stack", lambda x, y: torch.stack([x, y]), (normal("ab"), normal("ab"))),
    Operator("stack_last", lambda x, y: torch.stack([x, y], -1), (normal("ab"), normal("ab"))),
    Operator("hstack", lambda x, y: torch.hstack([x, y]), (normal("ab"), normal("ac"))),
)

PARTS = (
    Operator("split", lambda x: x.split(2), (normal("ab"),)),
    Operator("split_last", lambda x: x.split(3, -1), (normal("ab"),)),
    Operator("split_with_sizes", lambda x: x.split([1, x.shape[1] - 1], 1), (normal("ab"),), placed=("R", "S0", "P")),
    Operator("chunk", lambda x: x.chunk(2), (normal("ab"),)),
    Operator("chunk_last", lambda x: x.chunk(3, -1), (normal("ab"),)),
    Operator("unbind", lambda x: x.unbind(0), (normal("ab"),)),
    Operator("select", lambda x: x.select(0, 0), (normal("ab"),)),
    Operator("select_last", lambda x: x[:, -1], (normal("ab"),)),
    Operator("slice", lambda x: x[1:], (normal("ab"),), placed=("R", "S1", "P")),
    Operator("slice_sharded", lambda x: x[:-1], (normal("ab"),), placed=("S0",)),
    Operator("slice_whole", lambda x: x[:], (normal("ab"),)),
    Operator("slice_step", lambda x: x[::2], (normal("ab"),)),
    Operator("slice_last", lambda x: x[..., :1], (normal("ab"),)),
    Operator("narrow", lambda x: x.narrow(1, 0, 1), (normal("ab"),)),
    Operator("index_none", lambda x: x[:, None], (normal("ab"),)),
)

MOVES = (
    Operator("pad_last", lambda x: F.pad(x, (1, 2)), (normal("ab"),), on_four=True),
    Operator("pad_first", lambda x: F.pad(x, (0, 0, 2, 1), value=0.5), (normal("ab"),)),
    Operator("pad_negative", lambda x: F.pad(x, (-1, 2)), (normal("ab"),), placed=("R", "S0", "P")),
    Operator("flip", lambda x: x.flip(0), (normal("ab"),)),
    Operator("flip_last", lambda x: x.flip(-1), (normal("ab"),)),
    Operator("roll", lambda x: x.roll(1, 0), (normal("ab"),)),
    Operator("roll_all", lambda x: x.roll(3), (normal("ab"),)),
    Operator("tril", torch.tril, (normal("abc"),)),
    Operator("triu", lambda x: x.triu(1), (normal("abc"),)),
    Operator("tril_of_matrix", lambda x: x.tril(-1), (normal("ab"),)),
    Operator("sort", lambda x: x.sort(0), (normal("ab"),)),
    Operator("sort_last", lambda x: x.sort(-1, descending=True), (normal("ab"),)),
    Operator("argsort", lambda x: x.argsort(0), (normal("ab"),)),
    Operator("topk", lambda x: x.topk(1, 0), (normal("ab"),)),
    Operator("topk_last", lambda x: x.topk(1, -1), (normal("ab"),)),
    Operator("kthvalue", lambda x: x.kthvalue(1, 0), (normal("ab"),)),
)

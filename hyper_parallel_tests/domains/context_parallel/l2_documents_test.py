"""Packed sequences: several documents one after the other, cut without regard to them."""

from __future__ import annotations

import pytest
import torch

from hyper_parallel_tests.domains.context_parallel.reference import attention, seen_keys
from hyper_parallel_tests.domains.context_parallel.setting import (
    METHODS,
    TOKENS_DIM,
    Case,
    loss_and_gradients,
    on_one_card,
    on_ranks,
    own_part,
)
from hyper_parallel_tests.harness import assert_close, contract

# Lengths of the documents of two rows of 16 tokens; the second row differs, so that rows are not confused.
PACKINGS = {
    "across_ranks": ((6, 7, 3), (16,)),
    "at_the_cuts": ((4, 4, 4, 4), (8, 8)),
    "short": ((1, 1, 5, 2, 7), (15, 1)),
}

each_method = pytest.mark.parametrize("method", METHODS)
either_order = pytest.mark.parametrize("load_balance", [False, True], ids=["in_order", "zig_zag"])
either_mask = pytest.mark.parametrize("causal", [False, True], ids=["full", "causal"])
each_packing = pytest.mark.parametrize("packing", PACKINGS.values(), ids=PACKINGS)


def documents(packing: tuple[tuple[int, ...], ...]) -> torch.Tensor:
    """Which document each token is of, (rows, tokens)."""
    return torch.stack(
        [torch.arange(len(row)).repeat_interleave(torch.tensor(row)) for row in packing],
    )


@contract("CP-2-03")
@each_method
@either_order
@either_mask
@each_packing
def test_packed_sequence(engine, world, ledger, method, load_balance, causal, packing):
    """Output, loss and gradients are the single card's under the mask of documents."""
    case = Case(causal=causal, load_balance=load_balance, documents=documents(packing))
    assert_close(on_ranks(engine, world, case, method), on_one_card(world, case), ledger["cp_fp32"], what="attention")


@contract("CP-2-03")
@each_method
@either_order
def test_each_document_by_itself(engine, world, ledger, method, load_balance):
    """What a packed sequence gives is what its documents give when each is computed alone, without any mask of them."""
    packing = PACKINGS["across_ranks"][:1] * 2
    case = Case(causal=True, load_balance=load_balance, documents=documents(packing))
    whole = case.tensors(world)
    pieces = {name: one.split(packing[0], TOKENS_DIM) for name, one in whole.items()}
    alone = [
        loss_and_gradients(
            lambda q, k, v: attention(q, k, v, seen_keys(q.shape[TOKENS_DIM], causal=True).to(world.device)),
            {name: piece[number] for name, piece in pieces.items()},
        )
        for number in range(len(packing[0]))
    ]
    strung = {name: torch.cat([one[name] for one in alone], TOKENS_DIM) for name in ("output", "dq", "dk", "dv")}
    expected = own_part(world, case, strung | {"loss": sum(one["loss"] for one in alone)})
    assert_close(on_ranks(engine, world, case, method), expected, ledger["cp_fp32"], what="attention")


@contract("CP-2-03")
@each_method
def test_documents_with_padding(engine, world, ledger, method):
    """Padding at the end is a document of its own that nothing sees, itself included."""
    rows = documents(((6, 7, 3), (9, 4, 3)))
    case = Case(causal=True, load_balance=True, documents=rows, padding=rows == 2)
    assert_close(on_ranks(engine, world, case, method), on_one_card(world, case), ledger["cp_fp32"], what="attention")

"""Attention over a divided sequence against one card that has all of it."""

from __future__ import annotations

import pytest
import torch

from hyper_parallel_tests.domains.context_parallel.reference import part
from hyper_parallel_tests.domains.context_parallel.setting import (
    BATCH,
    METHODS,
    TOKENS_DIM,
    Case,
    on_one_card,
    on_ranks,
)
from hyper_parallel_tests.harness import assert_close, assert_equal, contract

HEADS = {"mha": (4, 4), "gqa": (8, 4)}
# The second is no multiple of anything; it leaves every rank with chunks of two lengths.
LENGTHS = {"even": 16, "uneven": 13}


def padded(tokens: int, *numbers: int) -> torch.Tensor:
    """Which tokens are padding: of row i the last `numbers[i]`, or the first where it is negative."""
    places = torch.arange(tokens)
    rows = [places < -number if number < 0 else places >= tokens - number for number in numbers]
    return torch.stack(rows)


each_method = pytest.mark.parametrize("method", METHODS)
either_order = pytest.mark.parametrize("load_balance", [False, True], ids=["in_order", "zig_zag"])
each_length = pytest.mark.parametrize("tokens", LENGTHS.values(), ids=LENGTHS)
each_heads = pytest.mark.parametrize("heads", HEADS.values(), ids=HEADS)
either_mask = pytest.mark.parametrize("causal", [False, True], ids=["full", "causal"])


@contract("CP-2-01")
@each_method
@either_order
@each_length
@each_heads
@either_mask
def test_attention(engine, world, ledger, method, load_balance, tokens, heads, causal):
    """Output, loss and the gradients of q, k and v are those of the whole sequence on one card."""
    case = Case(tokens, *heads, causal=causal, load_balance=load_balance)
    assert_close(on_ranks(engine, world, case, method), on_one_card(world, case), ledger["cp_fp32"], what="attention")


@contract("CP-2-01")
@each_method
@either_order
@either_mask
@pytest.mark.parametrize("padding", [(3, 0), (9, 5)], ids=["a_little", "more_than_a_rank"])
def test_padding(engine, world, ledger, method, load_balance, causal, padding):
    """Padding at the end of the rows, on other ranks too, is seen by no query."""
    tokens = LENGTHS["uneven"]
    case = Case(tokens, causal=causal, load_balance=load_balance, padding=padded(tokens, *padding))
    assert_close(on_ranks(engine, world, case, method), on_one_card(world, case), ledger["cp_fp32"], what="attention")


@contract("CP-2-01")
@each_method
@either_order
def test_query_that_sees_nothing(engine, world, ledger, method, load_balance):
    """With padding at the start a causal query may see no key at all: it gives zeros, and no NaN anywhere."""
    case = Case(causal=True, load_balance=load_balance, padding=padded(16, -6, -1))
    assert_close(on_ranks(engine, world, case, method), on_one_card(world, case), ledger["cp_fp32"], what="attention")


@contract("CP-2-01")
@each_method
@either_order
@pytest.mark.parametrize("tokens", [3, 1], ids=["three", "one"])
def test_ranks_without_tokens(engine, world, ledger, method, load_balance, tokens):
    """A sequence shorter than there are chunks leaves some of them empty, and perhaps ranks."""
    case = Case(tokens, causal=True, load_balance=load_balance)
    nothing = "a rank without tokens has nothing"
    expected = on_one_card(world, case)
    found = on_ranks(engine, world, case, method)
    assert_close(found, expected, ledger["cp_fp32"], what="attention", zero_because=nothing)


@contract("CP-2-01")
@each_method
def test_scale(engine, world, ledger, method):
    """A scale given for the scores is used by all ranks, in backward too: here that of four times the width."""
    case = Case(causal=True)
    found = on_ranks(engine, world, case, method, scale=0.5 * 8**-0.5)
    halved = {name: one / 2 if name in ("q", "dq") else one for name, one in _with_halved_queries(world, case).items()}
    assert_close(found, halved, ledger["cp_fp32"], what="attention")


def _with_halved_queries(world, case):
    """What one card makes of queries of half the size, which is the same as half the scale."""

    class Halved(Case):
        def tensors(self, world):
            found = super().tensors(world)
            return found | {"q": found["q"] / 2}

    return on_one_card(world, Halved(causal=case.causal))


@contract("CP-2-01")
@each_method
def test_heads_that_cannot_be_grouped(engine, world, method):
    """Query heads that cannot share the key heads evenly are refused before any communication."""
    case = Case(heads=6, kv_heads=4)
    with pytest.raises(ValueError, match=r"\b6\b.*\b4\b"):
        on_ranks(engine, world, case, method)


@contract("CP-2-01")
def test_heads_that_cannot_be_dealt_out(engine, world):
    """With Ulysses heads that ranks do not divide are refused, with both numbers."""
    case = Case(heads=world.size + 1, kv_heads=world.size + 1)
    with pytest.raises(ValueError, match=rf"\b{world.size + 1}\b.*\b{world.size}\b"):
        on_ranks(engine, world, case, "ulysses")


@contract("CP-2-01")
def test_wrong_number_of_tokens(engine, world):
    """A rank that holds another number of tokens than it should says so, with both numbers."""
    q = torch.zeros(BATCH, 4, 5, 8, device=world.device)
    with pytest.raises(ValueError, match=r"\b5\b"):
        engine.context_parallel_attention(q, q, q, world.mesh(cp=world.size), method="ring", seq_len=5 * world.size + 9)


@contract("CP-2-01")
@either_order
@each_length
def test_unshard_inverts_shard(engine, world, load_balance, tokens):
    """Each rank has the part of the definition; gathered they are the tensor, and gradients are summed over ranks."""
    mesh = world.mesh(cp=world.size)
    whole = Case(tokens).tensors(world)["q"]
    own = engine.context_parallel_shard(whole, mesh, TOKENS_DIM, load_balance=load_balance)
    assert_equal(own, part(whole, TOKENS_DIM, world.rank, world.size, load_balance), what="part")
    own.requires_grad_()
    gathered = engine.context_parallel_unshard(own, mesh, TOKENS_DIM, load_balance=load_balance, seq_len=tokens)
    assert_equal(gathered, whole, what="whole")
    # Whole numbers, so that the sum over ranks is exact.
    weight = (whole * 8).round()
    (gathered * weight * (world.rank + 1)).sum().backward()
    ranks = sum(range(1, world.size + 1))
    assert_equal(own.grad, part(weight, TOKENS_DIM, world.rank, world.size, load_balance) * ranks, what="gradient")

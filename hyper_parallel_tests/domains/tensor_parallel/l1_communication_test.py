"""What a block of divided layers sends, forward and backward."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from hyper_parallel_tests.domains.tensor_parallel.networks import (
    EQUAL,
    GROUPED,
    attention,
    attention_plan,
    decoder_batches,
    divided_decoder,
    divided_mlp,
    feed_forward,
    feed_forward_plan,
    hidden_batches,
    logits,
    mesh_of,
    own_tokens,
)
from hyper_parallel_tests.harness import World, contract, trace

BLOCKS = ["mlp", "mlp_without_bias", "attention", "grouped_attention", "feed_forward"]
either_way = pytest.mark.parametrize("sequence", [False, True], ids=["whole", "own_tokens"])

SENT = {False: ["all_reduce"], True: ["all_gather", "reduce_scatter"]}


def block(engine: Any, world: World, name: str, sequence: bool) -> nn.Module:
    if name.startswith("mlp"):
        return divided_mlp(engine, world, bias=name == "mlp", sequence=sequence)
    if name == "feed_forward":
        model, plan = feed_forward(world, GROUPED), feed_forward_plan(engine, sequence)
    else:
        model = attention(world, GROUPED if name == "grouped_attention" else EQUAL)
        plan = attention_plan(engine, sequence)
    return engine.parallelize_module(model, mesh_of(world), plan)


def arguments(world: World, name: str, sequence: bool) -> list[Tensor]:
    whole = hidden_batches(world, 16 if name.startswith("mlp") else GROUPED.hidden)[0].inputs
    given = (own_tokens(world, whole) if sequence else whole).clone().requires_grad_()
    positions = [torch.arange(whole.shape[1], device=world.device)] if "attention" in name else []
    return [given, *positions]


@contract("TP-1-02")
@pytest.mark.parametrize("name", BLOCKS)
@either_way
def test_block(engine, world, name, sequence):
    """One all-reduce each way, or with a divided sequence one all-gather and one reduce-scatter each way."""
    model, given = block(engine, world, name, sequence), arguments(world, name, sequence)
    with trace.collectives() as forward:
        output = model(*given)
    with trace.collectives() as backward:
        output.square().mean().backward()
    assert forward.ops() == SENT[sequence]
    assert backward.ops() == SENT[sequence]
    assert {one.ranks for one in (*forward, *backward)} == {tuple(range(world.size))}
    assert {one.reduce for one in (*forward, *backward) if one.op != "all_gather"} == {"sum"}


@contract("TP-1-02")
@either_way
def test_bytes(engine, world, sequence):
    """What is sent is the hidden states, of all tokens or as a rank's part of them, and not the inner width."""
    model, given = block(engine, world, "feed_forward", sequence), arguments(world, "feed_forward", sequence)
    whole = given[0].numel() * given[0].element_size() * (world.size if sequence else 1)
    with trace.collectives() as sent:
        model(*given).square().mean().backward()
    expected = {"all_reduce": whole, "all_gather": whole // world.size, "reduce_scatter": whole}
    assert [one.bytes for one in sent] == [expected[one.op] for one in sent]


@contract("TP-1-02")
def test_pass_without_gradients_sends_as_much(engine, world):
    """Without gradients forward costs its one all-reduce, and no more."""
    model, given = block(engine, world, "grouped_attention", sequence=False), arguments(world, "attention", False)
    with torch.no_grad(), trace.collectives() as sent:
        model(*given)
    assert sent.ops() == ["all_reduce"]


@contract("TP-1-02")
@pytest.mark.parametrize("repeat", [1, 2])
def test_each_pass_costs_the_same(engine, world, repeat):
    """Nothing is kept from the last pass that would make the next one cheaper or dearer."""
    model, given = block(engine, world, "mlp", sequence=False), arguments(world, "mlp", False)
    with trace.collectives() as sent:
        for _ in range(repeat):
            model(*given).square().mean().backward()
    assert sent.ops() == ["all_reduce"] * 2 * repeat


@contract("TP-1-02")
@either_way
def test_decoder(engine, world, sequence):
    """In a decoder each of the two blocks has its own; embedding and output add one exchange each."""
    model, batch = divided_decoder(engine, world, GROUPED, sequence=sequence), decoder_batches(world, GROUPED)[0]
    with trace.collectives() as sent:
        logits(model, batch.inputs)
    if sequence:
        # Of the embedding, then of both blocks, then of the tokens and the logits.
        block = ["all_gather", "reduce_scatter"]
        assert sent.ops() == ["reduce_scatter", *block, *block, "all_gather", "all_gather"]
    else:
        assert sent.ops() == ["all_reduce", "all_reduce", "all_reduce", "all_gather"]

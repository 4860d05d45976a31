"""Steps of single parameters, divided in every way, with given gradients: the bits of PyTorch's steps of the whole."""

from __future__ import annotations

import pytest
import torch

from hyper_parallel_tests.domains.optimizer.updates import STEPS, divided_steps, given, on_one_card, whole_steps
from hyper_parallel_tests.harness import assert_close, assert_differs, contract, in_clean_process, trace

# Rows of each of two ranks: even, uneven, and none for the second; more rows than columns and fewer.
SHAPES = {"even": (8, 6), "uneven": (7, 5), "wide": (3, 8), "empty": (1, 5)}
PLACEMENTS = ("rows", "columns", "copies")

each_kind = pytest.mark.parametrize("kind", ["AdamW", "Muon"])
each_shape = pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
each_placement = pytest.mark.parametrize("placement", PLACEMENTS)


def placed(engine, placement):
    return [{"rows": engine.Shard(0), "columns": engine.Shard(1), "copies": engine.Replicate()}[placement]]


@contract("OP-2-01")
@each_kind
@each_shape
@each_placement
def test_divided(engine, world, ledger, kind, shape, placement):
    """However the matrix lies, three steps are bit by bit those of the whole, with momentum and decay."""
    found = divided_steps(engine, kind, shape, world.mesh(x=world.size), placed(engine, placement))
    assert_close(found, in_clean_process(on_one_card, kind, shape), ledger["exact"], what="parameter")


@contract("OP-2-01")
@pytest.mark.parametrize("foreach", [False, True], ids=["for_loop", "lists"])
def test_vector(engine, world, ledger, foreach):
    """So are AdamW's of a vector with an uneven shard, parameter by parameter or by lists."""
    found = divided_steps(engine, "AdamW", (7,), world.mesh(x=world.size), [engine.Shard(0)], foreach=foreach)
    assert_close(found, in_clean_process(on_one_card, "AdamW", (7,)), ledger["exact"], what="parameter")


def shard_by_shard(shape: tuple[int, int], ranks: int) -> list[torch.Tensor]:
    """What comes out if each rank takes its own rows for the matrix."""
    grads = [given(1 + step, shape).chunk(ranks) for step in range(STEPS)]
    parts = [
        whole_steps("Muon", start, [grad[rank] for grad in grads], {})
        for rank, start in enumerate(given(0, shape).chunk(ranks))
    ]
    return [torch.cat(parts_of_step) for parts_of_step in zip(*parts, strict=True)]


@contract("OP-2-01")
@pytest.mark.parametrize("shape", [SHAPES["even"], SHAPES["uneven"]], ids=["even", "uneven"])
def test_shards_are_no_matrices(engine, world, ledger, shape):
    """It is not what orthogonalising the shards one by one gives, by more than any training would tolerate."""
    found = divided_steps(engine, "Muon", shape, world.mesh(x=world.size), [engine.Shard(0)])
    assert_differs(found, shard_by_shard(shape, world.size), ledger["fsdp_1d_bf16"], what="parameter")


@contract("OP-2-01")
@each_kind
def test_what_is_sent(engine, world, kind):
    """AdamW sends nothing; Muon gathers a divided matrix, and nothing of one that is whole on each rank."""
    for placement in PLACEMENTS:
        with trace.collectives() as sent:
            divided_steps(engine, kind, SHAPES["even"], world.mesh(x=world.size), placed(engine, placement))
        steps = [op for op in sent.ops() if op not in ("broadcast", "scatter")]
        wanted = ["all_gather"] * STEPS if kind == "Muon" and placement != "copies" else []
        assert steps == wanted, placement

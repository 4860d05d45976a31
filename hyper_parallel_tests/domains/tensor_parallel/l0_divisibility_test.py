"""Heads and vocabularies that ranks do not divide."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from hyper_parallel_tests.harness import contract
from hyper_parallel_tests.models.decoder import Attention, DecoderShape
from hyper_parallel_tests.models.mlp import mlp


@contract("TP-0-03")
@pytest.mark.parametrize(
    ("heads", "kv_heads", "ranks", "expected"),
    [(8, 8, 4, (2, 2)), (8, 4, 4, (2, 1)), (8, 1, 1, (8, 1)), (12, 6, 3, (4, 2)), (6, 2, 2, (3, 1))],
)
def test_heads_per_rank(engine, heads, kv_heads, ranks, expected):
    """Each rank has equally many, and whole groups of them."""
    assert engine.attention_heads_per_rank(heads, kv_heads, ranks) == expected


@contract("TP-0-03")
@pytest.mark.parametrize(
    ("heads", "kv_heads", "ranks", "said"),
    [
        (6, 6, 4, r"6 heads.*4 ranks"),
        (8, 2, 4, r"2 key-value heads.*4 ranks"),
        (8, 1, 2, r"1 key-value heads.*2 ranks"),
        (8, 3, 1, r"8 heads.*3 key-value heads"),
    ],
)
def test_heads_that_do_not_divide(engine, heads, kv_heads, ranks, said):
    """The message names both numbers."""
    with pytest.raises(ValueError, match=said):
        engine.attention_heads_per_rank(heads, kv_heads, ranks)


@contract("TP-0-03")
@pytest.mark.parametrize(("heads", "kv_heads"), [(6, 6), (8, 2), (4, 1)], ids=["heads", "kv_heads", "one_kv_head"])
def test_attention_whose_heads_do_not_divide(engine, heads, kv_heads):
    """Half a head on a rank never passes for a head: the layers' sizes are named when it runs."""
    shape = DecoderShape(hidden=heads * 8, heads=heads, kv_heads=kv_heads)
    with engine.simulated_world(0, 4):
        mesh = engine.init_device_mesh("cpu", (4,), mesh_dim_names=("tp",))
        plan = {"[qkv]": engine.ColwiseParallel(), "o": engine.RowwiseParallel()}
        attention = engine.parallelize_module(Attention(shape), mesh, plan)
        with pytest.raises(RuntimeError, match=f"8.*{min(heads % 4, kv_heads) * 8 // 4}|unflatten"):
            attention(torch.ones(1, 4, shape.hidden), torch.arange(4))


UNEVEN = {"even": (8, [2, 2, 2, 2]), "odd": (9, [3, 3, 3, 0]), "few": (3, [1, 1, 1, 0]), "last": (11, [3, 3, 3, 2])}


@contract("TP-0-03")
@pytest.mark.parametrize(("vocab", "expected"), UNEVEN.values(), ids=UNEVEN)
@pytest.mark.parametrize("kind", ["embedding", "output"])
def test_vocabulary_is_divided_like_a_chunked_tensor(engine, kind, vocab, expected):
    """Each rank's rows are those of `torch.chunk`, all rows are somewhere, and the shape is the whole vocabulary's."""
    found = []
    for rank in range(4):
        with engine.simulated_world(rank, 4):
            mesh = engine.init_device_mesh("cpu", (4,), mesh_dim_names=("tp",))
            if kind == "embedding":
                layer, style = nn.Embedding(vocab, 4), engine.RowwiseParallel(input_layouts=engine.Replicate())
            else:
                layer, style = nn.Linear(4, vocab, bias=False), engine.ColwiseParallel()
            engine.parallelize_module(layer, mesh, style)
            assert tuple(layer.weight.shape) == (vocab, 4)
            found.append(layer.weight.to_local().shape[0])
    assert found == expected


def of_uneven_width(engine, use_local_output: bool) -> nn.Module:
    """Two layers with 6 features between them, divided among 4 ranks."""
    mesh = engine.init_device_mesh("cpu", (4,), mesh_dim_names=("tp",))
    columns = engine.ColwiseParallel(use_local_output=use_local_output)
    return engine.parallelize_module(mlp(6, 2), mesh, {"layers.0": columns, "layers.1": engine.RowwiseParallel()})


@contract("TP-0-03")
@pytest.mark.parametrize("rank", range(4))
def test_uneven_features_inside_a_block(engine, rank):
    """Between two layers features that ranks do not divide may be a distributed tensor, which knows its size."""
    with engine.simulated_world(rank, 4):
        model = of_uneven_width(engine, use_local_output=False)
        assert tuple(model(torch.ones(3, 6)).shape) == (3, 6)


@contract("TP-0-03")
@pytest.mark.parametrize("rank", range(4))
def test_uneven_features_as_plain_parts_are_refused(engine, rank):
    """As plain parts they are taken for even ones, and the error says how many were expected."""
    with engine.simulated_world(rank, 4):
        model = of_uneven_width(engine, use_local_output=True)
        with pytest.raises(RuntimeError, match="6"):
            model(torch.ones(3, 6))

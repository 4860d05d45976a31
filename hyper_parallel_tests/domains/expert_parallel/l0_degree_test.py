"""How many experts a rank holds."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from hyper_parallel_tests.harness import assert_equal, contract


def mesh_of(engine: Any, *sizes: int) -> Any:
    return engine.init_device_mesh("cpu", sizes, mesh_dim_names=("ep", "tp")[: len(sizes)])


@contract("EP-0-03")
@pytest.mark.parametrize(("experts", "ranks"), [(8, 1), (8, 2), (8, 8), (16, 4), (12, 3)])
def test_each_rank_holds_equally_many(engine, experts, ranks):
    """In order, each expert on one rank."""
    held = [list(engine.experts_of_rank(experts, ranks, rank)) for rank in range(ranks)]
    assert {len(one) for one in held} == {experts // ranks}
    assert sum(held, []) == list(range(experts))


@contract("EP-0-03")
@pytest.mark.parametrize(("experts", "ranks"), [(6, 4), (4, 8), (5, 2)])
def test_experts_that_ranks_do_not_divide(engine, experts, ranks):
    """They are refused, and the message has both numbers."""
    with pytest.raises(ValueError, match=rf"\b{experts}\b.*\b{ranks}\b"):
        engine.experts_of_rank(experts, ranks, 0)


@contract("EP-0-03")
@pytest.mark.parametrize("rank", [-1, 4])
def test_rank_that_is_not_there(engine, rank):
    """It holds nothing: it is refused with the number of ranks."""
    with pytest.raises(ValueError, match=rf"{rank}\b.*\b4\b"):
        engine.experts_of_rank(8, 4, rank)


@contract("EP-0-03")
@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"token_dispatcher": "pigeon"}, "pigeon"),
        ({"fused": True, "chunks": 0}, r"\b0\b"),
        ({"chunks": 2}, r"\b2\b.*fused=False"),
    ],
    ids=["dispatcher", "no_chunk", "chunks_without_fusing"],
)
def test_impossible_styles(engine, options, said):
    """Unknown dispatchers and numbers of chunks that cannot be are refused and named."""
    with pytest.raises(ValueError, match=said):
        engine.ExpertParallel(**options)


@contract("EP-0-03")
@pytest.mark.parametrize("fused", [False, True], ids=["composed", "fused"])
def test_style_refuses_them_before_it_changes_anything(engine, fused):
    """The style's error has both numbers, and the module's parameters are what they were."""
    module = engine.GroupedExperts(4, 4, 6)
    before = dict(module.named_parameters())
    with engine.simulated_world(0, 4), pytest.raises(ValueError, match=r"\b6\b.*\b4\b"):
        engine.ExpertParallel(fused=fused).apply(module, mesh_of(engine, 4))
    assert all(one is before[name] for name, one in module.named_parameters())


@contract("EP-0-03")
@pytest.mark.parametrize(
    ("experts", "width", "said"), [(3, 4, r"\b3\b.*\b2\b"), (4, 6, r"\b6\b.*\b4\b")], ids=["experts", "width"]
)
def test_tensor_parallel_style_refuses_too(engine, experts, width, said):
    """Neither experts nor a hidden width that ranks do not divide is taken, and nothing is changed."""
    module = engine.GroupedExperts(4, width, experts)
    before = dict(module.named_parameters())
    with engine.simulated_world(0, 8), pytest.raises(ValueError, match=said):
        engine.ExpertTensorParallel().apply(module, mesh_of(engine, 2, 4))
    assert all(one is before[name] for name, one in module.named_parameters())


@contract("EP-0-03")
@pytest.mark.parametrize("rank", range(4))
def test_style_keeps_a_ranks_own_experts(engine, rank):
    """Of each parameter a rank keeps its experts' part, as it was."""
    module = engine.GroupedExperts(4, 6, 8)
    whole = {name: one.detach().clone() for name, one in module.named_parameters()}
    with engine.simulated_world(rank, 4):
        engine.ExpertParallel().apply(module, mesh_of(engine, 4))
        own = {name: one.to_local().detach() for name, one in module.named_parameters()}
    assert_equal(own, {name: one[2 * rank : 2 * rank + 2] for name, one in whole.items()}, what="parameter")


class OwnExperts(nn.Module):
    """A scale and, in a part of the module, a matrix for each expert."""

    def __init__(self, scales: int, matrices: int) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.arange(float(scales)))
        self.part = nn.Module()
        self.part.matrix = nn.Parameter(torch.arange(6.0 * matrices).view(matrices, 2, 3))


@contract("EP-0-03")
def test_style_divides_all_parts_of_a_module(engine):
    """Parameters of a module's parts are divided as its own are."""
    module = OwnExperts(8, 8)
    whole = {name: one.detach().clone() for name, one in module.named_parameters()}
    with engine.simulated_world(1, 4):
        engine.ExpertParallel().apply(module, mesh_of(engine, 4))
        own = {name: one.to_local().detach() for name, one in module.named_parameters()}
    assert_equal(own, {name: one[2:4] for name, one in whole.items()}, what="parameter")


@contract("EP-0-03")
def test_second_parameter_that_does_not_divide(engine):
    """Where the first parameter divides and a later one does not, the first too stays as it was."""
    module = OwnExperts(8, 6)
    before = dict(module.named_parameters())
    with engine.simulated_world(0, 4), pytest.raises(ValueError, match=r"\b6\b.*\b4\b"):
        engine.ExpertParallel().apply(module, mesh_of(engine, 4))
    assert all(one is before[name] for name, one in module.named_parameters())


@contract("EP-0-03")
def test_experts_that_are_divided_already(engine):
    """A second style is refused: it would divide a rank's part again, and send rows twice."""
    module = engine.GroupedExperts(4, 4, 8)
    with engine.simulated_world(0, 2):
        engine.ExpertParallel().apply(module, mesh_of(engine, 2))
        with pytest.raises(ValueError, match="once"):
            engine.ExpertParallel().apply(module, mesh_of(engine, 2))
        assert module.gate.to_local().shape[0] == 4


@contract("EP-0-03")
def test_counts_for_another_number_of_experts(engine):
    """Counts whose number ranks do not divide are refused on dispatch, and the message has both numbers."""
    with engine.simulated_world(0, 4):
        mesh = mesh_of(engine, 4)
        rows = engine.GroupedExperts(4, 4, 4).gate[0]
        counts = rows.new_tensor([4, 0, 0, 0, 0, 0]).long()
        with pytest.raises(ValueError, match=r"\b6\b.*\b4\b"):
            engine.dispatch_tokens(rows, counts, mesh)

"""Rows on their way to the experts and back: which go where, and by which collectives."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from hyper_parallel_tests.domains.expert_parallel.networks import block, rows_of_rank
from hyper_parallel_tests.domains.expert_parallel.setting import (
    EXPERTS,
    LOADS,
    WIDTH,
    counts_of,
    incoming,
    mesh_of,
    outgoing,
)
from hyper_parallel_tests.harness import assert_close, assert_equal, contract, trace

each_load = pytest.mark.parametrize("load", LOADS)


@contract("EP-1-01")
@each_load
def test_each_expert_gets_its_rows(engine, world, load):
    """Exactly the rows that chose it, from all ranks, by rank and then as they were sent, and how many they are."""
    dispatched = engine.dispatch_tokens(*outgoing(world, load), mesh_of(world))
    rows, counts = incoming(world, load)
    assert dispatched.counts.tolist() == counts
    assert_equal(dispatched.rows, rows, what="rows")


@contract("EP-1-01")
@each_load
def test_split_sizes_match_what_is_sent(engine, world, load):
    """What a rank says it sends to another is what its rows are, and what the other says it has received."""
    dispatched = engine.dispatch_tokens(*outgoing(world, load), mesh_of(world))
    each = EXPERTS // world.size
    expected = [
        [sum(counts_of(load, rank)[to * each : (to + 1) * each]) for to in range(world.size)]
        for rank in range(world.size)
    ]
    assert dispatched.sent == expected[world.rank]
    assert dispatched.received == [row[world.rank] for row in expected]
    told = [torch.zeros(world.size, dtype=torch.int64, device=world.device) for _ in range(world.size)]
    engine.all_gather(told, torch.tensor(dispatched.sent, device=world.device))
    assert [one[world.rank].item() for one in told] == dispatched.received


@contract("EP-1-01")
@each_load
def test_combine_is_the_inverse(engine, world, load):
    """Rows come back in their order, each as its expert has made it."""
    rows, counts = outgoing(world, load)
    dispatched = engine.dispatch_tokens(rows, counts, mesh_of(world))
    back = engine.combine_tokens(dispatched.rows * (dispatched.rows[:, 1:2] + 2), dispatched)
    assert_equal(back, rows * (rows[:, 1:2] + 2), what="rows")


@contract("EP-1-01")
@each_load
def test_gradient_of_dispatch_comes_back(engine, world, load):
    """A row's gradient, made where its expert is, comes back to the row, and there is one on a rank without rows."""
    rows, counts = outgoing(world, load)
    rows.requires_grad_()
    arrived = engine.dispatch_tokens(rows, counts, mesh_of(world)).rows
    # The gradient of half the square is the row itself, so that it too tells where it comes from.
    (arrived.square().sum() / 2).backward()
    assert rows.grad is not None
    assert_equal(rows.grad, rows.detach(), what="gradient")


@contract("EP-1-01")
@each_load
def test_gradient_of_combine_goes_to_the_experts(engine, world, load):
    """The gradient of what came back goes to the experts as the rows had come."""
    rows, counts = outgoing(world, load)
    dispatched = engine.dispatch_tokens(rows, counts, mesh_of(world))
    made = torch.ones_like(dispatched.rows, requires_grad=True)
    (engine.combine_tokens(made, dispatched) * rows).sum().backward()
    assert made.grad is not None
    assert_equal(made.grad, incoming(world, load)[0], what="gradient")


@contract("EP-1-01")
@pytest.mark.parametrize("load", ["uneven", "nothing"])
def test_collectives_of_dispatch_and_combine(engine, world, load):
    """Counts and rows go by one all-to-all each, rows back by one, and in backward one for each of the two."""
    rows, counts = outgoing(world, load)
    rows.requires_grad_()
    with trace.collectives() as forward:
        dispatched = engine.dispatch_tokens(rows, counts, mesh_of(world))
        back = engine.combine_tokens(dispatched.rows * 2, dispatched)
    with trace.collectives() as backward:
        back.backward(torch.ones_like(back))
    there = (sum(incoming(world, load)[1]), WIDTH)
    shapes = [((EXPERTS,), "int64"), (tuple(rows.shape), "float32"), (there, "float32")]
    assert [(one.op, one.shapes, one.dtype) for one in forward] == [
        ("all_to_all", (shape,), dtype) for shape, dtype in shapes
    ]
    assert [(one.op, one.shapes) for one in backward] == [
        ("all_to_all", (tuple(rows.shape),)),
        ("all_to_all", (there,)),
    ]


STYLES = {
    "composed": {},
    "async_combine": {"async_combine": True},
    "fused": {"fused": True},
    "two_chunks": {"fused": True, "chunks": 2},
}


@contract("EP-1-01")
@pytest.mark.parametrize("style", STYLES.values(), ids=STYLES)
def test_collectives_of_a_layer(engine, world, style):
    """A layer of experts sends its counts once, and rows twice each way for every chunk, whatever computes them."""
    model = block(engine, world)
    engine.ExpertParallel(**style).apply(model.moe.experts, mesh_of(world))
    with trace.collectives() as forward:
        output = model(rows_of_rank(world, "even"))
        total = output.square().sum()
    with trace.collectives() as backward:
        total.backward()
    chunks = style.get("chunks", 1)
    assert forward.ops() == ["all_to_all"] * (1 + 2 * chunks)
    assert backward.ops() == ["all_to_all"] * (2 * chunks)
    assert [one.dtype for one in forward] == ["int64"] + ["float32"] * (2 * chunks)
    assert {one.ranks for one in (*forward, *backward)} == {tuple(range(world.size))}


class ConstantExperts(nn.Module):
    """An expert multiplies by its number plus one; it is its parameter, of which a rank has its experts' part."""

    def __init__(self) -> None:
        super().__init__()
        self.factor = nn.Parameter(torch.arange(1.0, EXPERTS + 1))

    def forward(self, rows: Tensor, counts: Tensor) -> Tensor:
        return rows * self.factor.to_local().repeat_interleave(counts).unsqueeze(1)


@contract("EP-1-01")
@each_load
def test_any_module_of_experts(engine, world, ledger, load):
    """A module of one's own gets its experts' rows and counts, and its parameters the gradient of all ranks' rows."""
    module = engine.ExpertParallel().apply(ConstantExperts().to(world.device), mesh_of(world))
    rows, counts = outgoing(world, load)
    found = module(rows, counts)
    assert_equal(found.detach(), rows * (rows[:, 1:2] + 1), what="output")
    found.sum().backward()
    came, counts = incoming(world, load)
    expected = torch.stack([part.sum() for part in came.split(counts)])
    why = "an expert may have no rows"
    assert_close(module.factor.grad.to_local(), expected, ledger["ep_fp32"], what="gradient", zero_because=why)


@contract("EP-1-01")
@pytest.mark.parametrize("fused", [False, True], ids=["composed", "fused"])
@pytest.mark.parametrize("change", [1, -1], ids=["more", "fewer"])
def test_counts_that_do_not_add_up(engine, world, fused, change):
    """Counts of more or fewer rows than there are are refused on every rank; the message has both numbers."""
    rows, counts = outgoing(world, "even")
    module = engine.GroupedExperts(WIDTH, WIDTH, EXPERTS)
    engine.ExpertParallel(fused=fused).apply(module, mesh_of(world))
    with pytest.raises(ValueError, match=rf"\b{len(rows) + change * EXPERTS}\b.*\b{len(rows)}\b"):
        module(rows, counts + change)


@contract("EP-1-01")
@pytest.mark.watchdog(10)
@pytest.mark.parametrize("fused", [False, True], ids=["composed", "fused"])
@pytest.mark.parametrize("wrong", ["one_more", "negative"])
def test_counts_of_one_rank_that_do_not_add_up(engine, world, ledger, fused, wrong):
    """Where one rank's counts are wrong, all ranks get an error that tells of it, and the next call is right."""
    rows, counts = outgoing(world, "even")
    guilty = world.size - 1
    module = engine.GroupedExperts(WIDTH, WIDTH, EXPERTS).to(world.device)
    module = engine.ExpertParallel(fused=fused).apply(module, mesh_of(world))
    expected = module(rows, counts).detach()
    given, text = counts.clone(), rf"ranks \[{guilty}\]"
    if world.rank == guilty:
        # The first and the last expert are of two ranks.
        given += torch.tensor({"one_more": [1] + [0] * 7, "negative": [-3] + [0] * 6 + [3]}[wrong], device=world.device)
        text = rf"\b{len(rows) + 1}\b.*\b{len(rows)}\b" if wrong == "one_more" else r"-1\b"
    with pytest.raises(ValueError, match=text):
        module(rows, given)
    assert_equal(module(rows, counts).detach(), expected, what="rows after the error")


@contract("EP-1-01")
def test_two_layers_in_flight(engine, world, ledger):
    """Two calls before a backward keep their own rows: gradients are the sum of both calls' alone."""
    model = block(engine, world)
    engine.ExpertParallel().apply(model.moe.experts, mesh_of(world))
    first, second = (rows_of_rank(world, load) for load in ("even", "uneven"))

    def gradient(*calls: Tensor) -> list[Tensor]:
        model.zero_grad()
        sum(output.square().sum() for output in [model(one) for one in calls]).backward()
        return [one.grad.to_local().clone() for one in model.moe.experts.parameters()]

    alone = [gradient(first), gradient(second)]
    expected = [one + other for one, other in zip(*alone, strict=True)]
    assert_close(gradient(first, second), expected, ledger["ep_fp32"], what="gradient")

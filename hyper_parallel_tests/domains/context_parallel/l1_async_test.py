"""Transfers that go on beside the projections: when they start, and that nothing reads them too early."""

from __future__ import annotations

import pytest
import torch

from hyper_parallel_tests.domains.context_parallel.networks import STYLES, TOKENS, Block, batch, block, styled
from hyper_parallel_tests.domains.context_parallel.observation import moments
from hyper_parallel_tests.domains.context_parallel.reference import part, positions_of
from hyper_parallel_tests.harness import World, assert_close, contract, in_clean_process

each_style = pytest.mark.parametrize("style", STYLES)

# Ulysses moves q, k and v; where keys and values are gathered, the queries stay.
MOVED = {"ulysses": ("q", "k", "v"), "all_gather": ("k", "v")}


def forward(world: World, model: Block) -> torch.Tensor:
    """The block's output for this rank's tokens."""
    positions = torch.tensor(positions_of(world.rank, world.size, TOKENS, False), device=world.device)
    return model(part(batch(world).inputs, 1, world.rank, world.size), positions)


def mean_square(output: torch.Tensor, ranks: int = 1) -> torch.Tensor:
    """The share of one of `ranks` ranks, so that all shares add up to the mean over the whole output."""
    return output.square().mean() / ranks


def gradients(model: Block) -> dict[str, torch.Tensor]:
    return {name: one.grad for name, one in model.named_parameters()}


def on_one_card(world: World) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    """Output of the whole sequence, and the gradients of its mean square."""
    return in_clean_process(whole_sequence, world)


def whole_sequence(world: World) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    """What `on_one_card` computes there."""
    model = block(world)
    output = model(batch(world).inputs, torch.arange(TOKENS, device=world.device))
    mean_square(output).backward()
    return output.detach(), gradients(model)


def hold_back_the_last_rank(engine, world, model: Block) -> None:
    """Has the last rank begin only when all others have come to their attention, without having waited for it."""
    last, token = world.size - 1, torch.zeros(1, device=world.device)

    def meet(*_: object) -> None:
        for rank in range(last):
            if world.rank == last:
                engine.recv(token, src=rank)
            elif world.rank == rank:
                engine.send(token, dst=last)

    # Put there before the engine's hooks, so that on the others it runs before theirs, which wait.
    (model.q if world.rank == last else model.core).register_forward_pre_hook(meet)


def hold_back_the_last_gradients(engine, world, model: Block) -> None:
    """Has the last rank send its gradients back only when all others have come to the backward of a projection."""
    last, token = world.size - 1, torch.zeros(1, device=world.device)
    if world.rank == last:

        def wait_for_all(gradient: torch.Tensor) -> None:
            for rank in range(last):
                engine.recv(token, src=rank)

        # The value's gradient is the first to go back.
        model.core.register_forward_pre_hook(lambda _, args: args[2].register_hook(wait_for_all) and None)
    else:
        model.v.register_full_backward_pre_hook(lambda *_: engine.send(token, dst=last))


@contract("CP-1-02")
@each_style
def test_projections_do_not_wait_for_other_ranks(engine, world, ledger, style):
    """A rank goes through all its projections while another has not begun, and still reads nothing too early."""
    model = block(world)
    hold_back_the_last_rank(engine, world, model)
    found = forward(world, styled(engine, world, style, model, asynchronous=True))
    expected, _ = on_one_card(world)
    assert_close(found, part(expected, 1, world.rank, world.size), ledger["cp_fp32"], what="output")


@contract("CP-1-02")
@each_style
def test_gradients_do_not_wait_for_other_ranks(engine, world, ledger, style):
    """A rank sends all gradients back while another has not, and no projection takes them before they are there."""
    model = block(world)
    if world.rank != world.size - 1:
        # Before the engine's hook on the projection, which waits.
        hold_back_the_last_gradients(engine, world, model)
    styled(engine, world, style, model, asynchronous=True)
    if world.rank == world.size - 1:
        # After the engine's hook on the attention, so that it holds the laid out value.
        hold_back_the_last_gradients(engine, world, model)
    mean_square(forward(world, model), world.size).backward()
    found = gradients(model)
    for gradient in found.values():
        engine.all_reduce(gradient)
    assert_close(found, on_one_card(world)[1], ledger["cp_fp32"], what="gradient")


@contract("CP-1-02")
@each_style
def test_transfers_start_with_their_projection(engine, world, style):
    """Each projection's end starts one transfer, and all are waited for when the attention begins, none before."""
    model = styled(engine, world, style, asynchronous=True)
    with moments(model) as seen:
        forward(world, model)
    moved = MOVED[style]
    for number, name in enumerate(moved, 1):
        assert seen.since("forward_pre q", f"forward {name}") == (number, 0)
    # Positions are gathered there too.
    _, waited = seen.since("forward_pre q", "forward_pre core")
    assert waited == len(moved)


@contract("CP-1-02")
@each_style
def test_gradients_are_waited_for_one_by_one(engine, world, style):
    """All gradients are on their way before the first is waited for, each when its projection's backward begins."""
    model = styled(engine, world, style, asynchronous=True)
    with moments(model) as seen:
        mean_square(forward(world, model), world.size).backward()
    moved = MOVED[style]
    # Backward comes through the projections in the reverse order.
    backwards = [f"backward_pre {name}" for name in reversed(moved)]
    assert [one.event for one in seen if one.event in backwards] == backwards
    started = {seen.since("backward_pre core", event)[0] for event in backwards}
    assert len(started) == 1
    assert [seen.since("backward_pre core", event)[1] for event in backwards] == list(range(1, len(moved) + 1))


@contract("CP-1-02")
@each_style
def test_two_forwards_before_a_backward(engine, world, ledger, style):
    """Of two passes whose backwards come later and together, each gradient goes to its own pass."""
    model = styled(engine, world, style, asynchronous=True)
    first, second = forward(world, model), forward(world, model)
    (mean_square(first, world.size) - 3 * mean_square(second, world.size)).backward()
    found = gradients(model)
    for gradient in found.values():
        engine.all_reduce(gradient)
    expected = {name: -2 * one for name, one in on_one_card(world)[1].items()}
    assert_close(found, expected, ledger["cp_fp32"], what="gradient")


@contract("CP-1-02")
@each_style
def test_without_projections_it_is_synchronous(engine, world, ledger, style):
    """If a projection is not given nothing starts before the attention, and the output is the same."""
    model = block(world)
    plain = engine.AsyncContextParallel(
        ulysses_degree=STYLES[style], query_kwargs={"q_positions": 0}, key_kwargs={"k_positions": 0}
    )
    plain.apply(model.core, world.mesh(cp=world.size), q_proj=model.q)
    with moments(model) as seen:
        found = forward(world, model)
    assert seen.since("forward_pre q", "forward v") == (0, 0)
    expected, _ = on_one_card(world)
    assert_close(found, part(expected, 1, world.rank, world.size), ledger["cp_fp32"], what="output")

"""What the hooks of context parallelism get, and what they hand on."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from hyper_parallel_tests.domains.context_parallel.networks import (
    HEADS,
    KEY_KWARGS,
    KV_HEADS,
    QUERY_KWARGS,
    ROWS,
    STYLES,
    TOKENS,
    WIDTH,
    batch,
    block,
    styled,
)
from hyper_parallel_tests.domains.context_parallel.reference import part, positions_of
from hyper_parallel_tests.harness import World, assert_close, assert_equal, contract

each_style = pytest.mark.parametrize("style", STYLES)
either_way = pytest.mark.parametrize("by_name", [False, True], ids=["in_place", "by_name"])

DIMS = {"q": 1, "k": 1, "v": 1, **QUERY_KWARGS, **KEY_KWARGS}
HEADS_OF = {"q": HEADS, "k": KV_HEADS, "v": KV_HEADS}


class Probe(nn.Module):
    """An attention that keeps what it was given and returns its queries."""

    def __init__(self) -> None:
        super().__init__()
        self.given: dict[str, Any] = {}

    def forward(self, q: Tensor, k: Tensor, v: Tensor, label: str = "", **others: Any) -> Tensor:
        self.given = {"q": q, "k": k, "v": v, "label": label, **others}
        return q * 2


def whole_arguments(world: World) -> dict[str, Tensor]:
    """What one card's attention gets, with a mask that differs in every row."""
    source = world.generator(7)
    qkv = {
        name: torch.randn(ROWS, TOKENS, heads, WIDTH, generator=source).to(world.device)
        for name, heads in HEADS_OF.items()
    }
    positions = torch.arange(TOKENS, device=world.device)
    mask = (torch.rand(ROWS, 1, TOKENS, TOKENS, generator=source) < 0.8).to(world.device)
    return {**qkv, "mask": mask, "q_positions": positions, "k_positions": positions.clone()}


def own(world: World, whole: dict[str, Tensor]) -> dict[str, Tensor]:
    """This rank's part of each; of a mask it has the rows of its queries and all keys."""
    return {name: part(one, DIMS[name], world.rank, world.size) for name, one in whole.items()}


def expected_inside(world: World, style: str, whole: dict[str, Tensor]) -> dict[str, Tensor]:
    """What the attention must get: whole sequences of some heads, or its own queries and all keys."""
    if style == "ulysses":
        heads = {name: whole[name].chunk(world.size, 2)[world.rank] for name in HEADS_OF}
        return whole | heads
    mine = own(world, whole)
    return whole | {name: mine[name] for name in ("q", *QUERY_KWARGS)}


def call(module: nn.Module, arguments: dict[str, Tensor], by_name: bool) -> Tensor:
    """Calls an attention with q, k and v in place or by name."""
    if by_name:
        return module(label="first", **arguments)
    others = {name: one for name, one in arguments.items() if name not in HEADS_OF}
    return module(*(arguments[name] for name in HEADS_OF), label="first", **others)


def apply(engine: Any, world: World, style: str, module: nn.Module) -> nn.Module:
    """Divides a module that has the arguments of this file."""
    return engine.ContextParallel(
        ulysses_degree=STYLES[style],
        qkv_kwarg_names=("q", "k", "v"),
        query_kwargs=QUERY_KWARGS,
        key_kwargs=KEY_KWARGS,
    ).apply(module, world.mesh(cp=world.size))


@contract("CP-1-01")
@each_style
@either_way
def test_module_gets_all_arguments_laid_out_alike(engine, world, style, by_name):
    """q, k, v, mask and positions arrive together in the layout of the style, other arguments as they were."""
    whole = whole_arguments(world)
    probe = apply(engine, world, style, Probe())
    output = call(probe, own(world, whole), by_name)
    assert probe.given.pop("label") == "first"
    assert_equal(probe.given, expected_inside(world, style, whole), what="argument")
    assert_equal(output, own(world, whole)["q"] * 2, what="output")


@contract("CP-1-01")
@each_style
@either_way
def test_other_hooks_see_what_stands_at_their_place(engine, world, style, by_name):
    """A hook put on the module before sees this rank's arguments, one put on it after sees the laid out ones."""
    whole = whole_arguments(world)
    seen: dict[str, dict[str, Any]] = {}
    probe = Probe()

    def note(name: str) -> Any:
        def hook(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            seen[name] = {**dict(zip(HEADS_OF, args, strict=False)), **kwargs}

        return hook

    probe.register_forward_pre_hook(note("before"), with_kwargs=True)
    apply(engine, world, style, probe)
    probe.register_forward_pre_hook(note("after"), with_kwargs=True)
    call(probe, own(world, whole), by_name)
    assert [one.pop("label") for one in seen.values()] == ["first", "first"]
    assert_equal(seen["before"], own(world, whole), what="before")
    assert_equal(seen["after"], expected_inside(world, style, whole), what="after")


@contract("CP-1-01")
@each_style
def test_missing_mask_stays_missing(engine, world, style):
    """An argument that is None is passed as None, and one that is not given is not invented."""
    mine = own(world, whole_arguments(world))
    probe = apply(engine, world, style, Probe())
    call(probe, {name: mine[name] for name in HEADS_OF} | {"mask": None}, by_name=False)
    assert probe.given["mask"] is None
    assert "q_positions" not in probe.given


@contract("CP-1-01")
@each_style
@either_way
@pytest.mark.parametrize("masked", [False, True], ids=["no_mask", "mask"])
def test_rotary_positions_are_those_of_the_sequence(engine, world, ledger, style, by_name, masked):
    """With positions of its own tokens each rank gets the single card's output, under a mask too."""
    inputs, mask = batch(world).inputs, whole_arguments(world)["mask"]
    # Each query sees itself at least.
    mask = mask | torch.eye(TOKENS, dtype=torch.bool, device=world.device) if masked else None
    positions = torch.arange(TOKENS, device=world.device)
    expected = block(world)(inputs, positions, mask)
    mine = torch.tensor(positions_of(world.rank, world.size, TOKENS, False), device=world.device)
    rows = None if mask is None else part(mask, 2, world.rank, world.size)
    model = styled(engine, world, style, block(world, by_name))
    found = model(part(inputs, 1, world.rank, world.size), mine, rows)
    assert_close(found, part(expected, 1, world.rank, world.size), ledger["cp_fp32"], what="output")


@contract("CP-1-01")
def test_heads_that_ranks_do_not_divide(engine, world):
    """On forward Ulysses refuses heads that ranks do not divide, naming both numbers, whichever tensor has them."""
    mine = own(world, whole_arguments(world))
    odd = world.size + 1
    for name in HEADS_OF:
        probe = apply(engine, world, "ulysses", Probe())
        few = mine | {name: mine[name][:, :, :1].expand(-1, -1, odd, -1)}
        with pytest.raises(ValueError, match=rf"\b{odd}\b.*\b{world.size}\b"):
            call(probe, few, by_name=False)


@contract("CP-1-01")
def test_degree_that_does_not_divide_the_ranks(engine, world):
    """On apply a degree that does not divide the ranks is refused, naming both numbers."""
    degree = world.size + 1
    with pytest.raises(ValueError, match=rf"\b{degree}\b.*\b{world.size}\b|\b{world.size}\b.*\b{degree}\b"):
        engine.ContextParallel(ulysses_degree=degree).apply(Probe(), world.mesh(cp=world.size))

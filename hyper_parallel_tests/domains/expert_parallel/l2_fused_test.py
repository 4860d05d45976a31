"""The fused path against the composed one and one card, and the grouped GEMM that it is made of."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from hyper_parallel_tests.domains.expert_parallel.networks import SHARED, TOKENS, train_by_style, train_on_one_card
from hyper_parallel_tests.domains.expert_parallel.setting import EXPERTS, incoming
from hyper_parallel_tests.harness import assert_close, assert_equal, assert_parity, contract

each_load = pytest.mark.parametrize("tokens", TOKENS)


@contract("EP-2-02")
@each_load
def test_fused_path(engine, world, ledger, tokens):
    """Training by the fused path is that by the composed one, and the single card's."""
    fused = train_by_style(engine, world, tokens, fused=True)
    composed = train_by_style(engine, world, tokens)
    assert_parity(fused, composed, ledger["ep_fp32"], own_because="the fused path equals the composed one")
    assert_parity(fused, train_on_one_card(world, SHARED, tokens), ledger["ep_fp32"])


@contract("EP-2-02")
@each_load
def test_chunks(engine, world, ledger, tokens):
    """With rows of one chunk of experts moving while another computes, training is that without."""
    chunked = train_by_style(engine, world, tokens, fused=True, chunks=2)
    at_once = train_by_style(engine, world, tokens, fused=True)
    assert_parity(chunked, at_once, ledger["ep_fp32"], own_because="overlap changes nothing")
    assert_parity(chunked, train_on_one_card(world, SHARED, tokens), ledger["ep_fp32"])


@contract("EP-2-02")
def test_more_chunks_than_experts(engine, world, ledger):
    """As many chunks as a rank has experts are made at most."""
    many = train_by_style(engine, world, "uneven", fused=True, chunks=2 * EXPERTS)
    at_once = train_by_style(engine, world, "uneven", fused=True)
    assert_parity(many, at_once, ledger["ep_fp32"], own_because="overlap changes nothing")


@contract("EP-2-02")
@pytest.mark.parametrize("tokens", ["uneven", "crowded"])
def test_grouped_gemm_in_the_composed_path(engine, world, ledger, tokens):
    """Experts by grouped GEMM train as the single card."""
    candidate = train_by_style(engine, world, tokens, use_grouped_mm=True)
    assert_parity(candidate, train_on_one_card(world, SHARED, tokens), ledger["ep_fp32"])


class Operators(TorchDispatchMode):
    """Records the operators that run inside."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names.append(func.name())
        return func(*args, **(kwargs or {}))


@contract("EP-2-02")
@pytest.mark.parametrize("use_grouped_mm", [False, True], ids=["each", "grouped"])
def test_grouped_gemm_is_one_product_for_all_experts(engine, world, use_grouped_mm):
    """With grouped GEMM a layer of experts has three products, and without it three for each expert."""
    experts = engine.GroupedExperts(8, 12, 4, use_grouped_mm).to(world.device)
    with Operators() as operators:
        experts(torch.randn(8, 8, generator=world.generator(1)).to(world.device), torch.full((4,), 2))
    products = [one for one in operators.names if "mm" in one]
    assert len(products) == (3 if use_grouped_mm else 3 * 4), products


PRODUCTS = {
    "aligned": (torch.float32, 8, 12),
    "odd_widths": (torch.float32, 3, 5),
    "fp64": (torch.float64, 8, 12),
    "bf16": (torch.bfloat16, 8, 16),
}


@contract("EP-2-02")
@pytest.mark.parametrize(("dtype", "width", "out"), PRODUCTS.values(), ids=PRODUCTS)
@pytest.mark.parametrize("load", ["uneven", "empty_expert", "all_to_one", "nothing"])
def test_grouped_gemm(engine, world, ledger, load, dtype, width, out):
    """Each expert's rows times its matrix, and both gradients: zeros for an expert without rows."""
    counts = incoming(world, load)[1]
    source = world.generator(1)
    rows = torch.randn(sum(counts), width, generator=source).to(world.device, dtype).requires_grad_()
    weights = torch.randn(len(counts), width, out, generator=source).to(world.device, dtype).requires_grad_()
    found = engine.grouped_mm(rows, weights, torch.tensor(counts, device=world.device))
    expected = torch.cat([part @ one for part, one in zip(rows.split(counts), weights, strict=True)])
    factors = torch.randn(sum(counts), out, generator=source).to(world.device, dtype)
    grads, wanted = (torch.autograd.grad(one, (rows, weights), factors) for one in (found, expected))
    row = ledger["ep_fp32" if dtype != torch.bfloat16 else "ep_bf16"]
    results = dict(zip(("output", "rows", "weights"), (found.detach(), *grads), strict=True))
    wanted = dict(zip(("output", "rows", "weights"), (expected.detach(), *wanted), strict=True))
    assert_close(results, wanted, row, what="product", zero_because="there may be no rows")


@contract("EP-2-02")
def test_gradient_of_a_grouped_sum(engine, world):
    """The gradient of the plain sum of a grouped GEMM is there: columns and rows of ones, summed."""
    rows = torch.randn(6, 8, generator=world.generator(1)).to(world.device).requires_grad_()
    weights = torch.ones(2, 8, 12, device=world.device, requires_grad=True)
    total = engine.grouped_mm(rows, weights, torch.tensor([2, 4], device=world.device)).sum()
    try:
        total.backward()
    except RuntimeError as error:
        pytest.fail(f"no gradient of a sum: {error}")
    assert_equal(rows.grad, torch.full((6, 8), 12.0, device=world.device), what="gradient")

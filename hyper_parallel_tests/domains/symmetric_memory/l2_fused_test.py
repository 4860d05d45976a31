"""Products beside the transfers of their operands or results, against the two apart."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from hyper_parallel_tests.domains.symmetric_memory.heaps import (
    DTYPES,
    acquired,
    each_dtype,
    stay_behind,
    values_of,
    zeros,
)
from hyper_parallel_tests.harness import World, assert_bitwise_repeatable, assert_close, assert_equal, contract

# Rows of each rank, inner, columns. Seven rows do not divide into blocks evenly.
ROWS, INNER, COLUMNS = 7, 5, 3

# Block of rows: None is the engine's own choice.
BLOCKS = [None, 1, 3, 7, 100]


@pytest.fixture
def memory(engine):
    with acquired(engine) as owner:
        yield owner


class GatherAndMultiply:
    """The fused all-gather and product with tensors of one shape, called again and again."""

    def __init__(self, engine, world: World, memory, dtype: torch.dtype) -> None:
        self.engine, self.world = engine, world
        rows = world.size * ROWS
        self.gathered = zeros(memory, rows, INNER, dtype=dtype)
        self.signal = zeros(memory, world.size, dtype=torch.int32)
        self.product = torch.zeros(rows, COLUMNS, dtype=dtype, device=memory.device)

    def fused(self, a: Tensor, b: Tensor, block_size: int | None = None) -> list[Tensor]:
        self.engine.fused_all_gather_matmul(a, b, self.product, self.gathered, self.signal, block_size)
        return [self.gathered.clone(), self.product.clone()]

    def apart(self, a: Tensor, b: Tensor) -> list[Tensor]:
        gathered = torch.empty(self.gathered.shape, dtype=a.dtype, device=a.device)
        self.engine.all_gather_into_tensor(gathered, a)
        return [gathered, gathered @ b]


class MultiplyAndScatter:
    """The fused product and reduce-scatter with tensors of one shape, called again and again."""

    def __init__(self, engine, world: World, memory, dtype: torch.dtype) -> None:
        self.engine, self.world = engine, world
        self.arriving = zeros(memory, world.size * ROWS, COLUMNS, dtype=dtype)
        self.signal = zeros(memory, world.size, dtype=torch.int32)

    def fused(self, a: Tensor, b: Tensor, reduce_op: str = "sum") -> Tensor:
        return self.engine.fused_matmul_reduce_scatter(a, b, self.arriving, self.signal, reduce_op)

    def apart(self, a: Tensor, b: Tensor, reduce_op: str = "sum") -> Tensor:
        total = torch.empty(ROWS, COLUMNS, dtype=a.dtype, device=a.device)
        self.engine.reduce_scatter_tensor(total, a @ b)
        return total / self.world.size if reduce_op == "avg" else total


def matrices(rank: int, rows: int, turn: int) -> tuple[Tensor, Tensor]:
    """A rank's matrices of small whole numbers, on the CPU in fp32."""
    return values_of(rank, rows, INNER, seed=turn), values_of(rank + 50, INNER, COLUMNS, seed=turn)


def whole_numbers(world: World, memory, dtype: torch.dtype, rows: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    """This rank's matrices, whose product has no rounding in any dtype."""
    a, b = matrices(world.rank, rows, seed)
    return a.to(memory.device, dtype), b.to(memory.device, dtype)


def any_numbers(world: World, memory, rows: int) -> tuple[Tensor, Tensor]:
    """This rank's matrices of values of order 1."""
    source = torch.Generator().manual_seed(world.rank)
    return tuple(torch.randn(*shape, generator=source).to(memory.device) for shape in ((rows, INNER), (INNER, COLUMNS)))


@contract("SM-2-01")
@each_dtype
def test_all_gather_matmul(engine, world, memory, dtype):
    """Gathered rows and product are those of an all-gather and then a product, three times with the same memory."""
    both = GatherAndMultiply(engine, world, memory, dtype)
    for turn in range(3):
        a, b = whole_numbers(world, memory, dtype, ROWS, turn)
        assert_equal(both.fused(a, b), both.apart(a, b), what=f"gathered and product of turn {turn}")


@contract("SM-2-01")
@pytest.mark.parametrize("block_size", BLOCKS, ids=str)
def test_all_gather_matmul_in_blocks(engine, world, memory, block_size):
    """Whatever the rows travel in, also where the last block is shorter, twice with the same memory."""
    both = GatherAndMultiply(engine, world, memory, torch.float32)
    for turn in range(2):
        a, b = whole_numbers(world, memory, torch.float32, ROWS, turn)
        assert_equal(both.fused(a, b, block_size), both.apart(a, b), what=f"gathered and product of turn {turn}")


@contract("SM-2-01")
@pytest.mark.parametrize(
    ("dtype", "reduce_op"),
    [(dtype, "sum") for dtype in DTYPES.values()]
    + [(dtype, "avg") for dtype in DTYPES.values() if dtype.is_floating_point],
    ids=[f"{name}_sum" for name in DTYPES]
    + [f"{name}_avg" for name, dtype in DTYPES.items() if dtype.is_floating_point],
)
def test_matmul_reduce_scatter(engine, world, memory, dtype, reduce_op):
    """The sum or mean of all ranks' products over this rank's rows, three times with the same memory."""
    both = MultiplyAndScatter(engine, world, memory, dtype)
    for turn in range(3):
        a, b = whole_numbers(world, memory, dtype, world.size * ROWS, turn)
        assert_equal(both.fused(a, b, reduce_op), both.apart(a, b, reduce_op), what=f"rows of turn {turn}")


@contract("SM-2-01")
@pytest.mark.parametrize("late", ["first", "last"])
def test_all_gather_matmul_with_a_late_rank(engine, world, memory, late):
    """A rank that begins late, and reads late what it has gathered, loses neither signals nor rows."""
    both, word = GatherAndMultiply(engine, world, memory, torch.float32), zeros(memory, 1, dtype=torch.int32)
    for turn in range(3):
        if world.rank == (0 if late == "first" else world.size - 1):
            stay_behind(engine, word)
        _, product = both.fused(*whole_numbers(world, memory, torch.float32, ROWS, turn))
        if world.rank == (0 if late == "first" else world.size - 1):
            stay_behind(engine, word)
        rows = torch.cat([matrices(rank, ROWS, turn)[0] for rank in range(world.size)])
        expected = [rows, rows @ matrices(world.rank, ROWS, turn)[1]]
        assert_equal([both.gathered, product], expected, what=f"gathered and product of turn {turn}")


@contract("SM-2-01")
@pytest.mark.parametrize("late", ["first", "last"])
def test_matmul_reduce_scatter_with_a_late_rank(engine, world, memory, late):
    """Nor does it where products are summed."""
    both, word = MultiplyAndScatter(engine, world, memory, torch.float32), zeros(memory, 1, dtype=torch.int32)
    own = slice(world.rank * ROWS, (world.rank + 1) * ROWS)
    for turn in range(3):
        if world.rank == (0 if late == "first" else world.size - 1):
            stay_behind(engine, word)
        found = both.fused(*whole_numbers(world, memory, torch.float32, world.size * ROWS, turn))
        pairs = [matrices(rank, world.size * ROWS, turn) for rank in range(world.size)]
        assert_equal(found, sum(a[own] @ b for a, b in pairs), what=f"rows of turn {turn}")


@contract("SM-2-01")
@pytest.mark.parametrize("kind", [GatherAndMultiply, MultiplyAndScatter])
def test_products_with_rounding(engine, world, memory, ledger, kind):
    """Of any numbers the fused form gives the unfused one's but for rounding, and the same bits each time."""
    both = kind(engine, world, memory, torch.float32)
    a, b = any_numbers(world, memory, ROWS if kind is GatherAndMultiply else world.size * ROWS)
    assert_close(both.fused(a, b), both.apart(a, b), ledger["collectives_fp32"], what="product")
    assert_bitwise_repeatable(lambda: both.fused(a, b))


@contract("SM-2-01")
@pytest.mark.parametrize("wrong", ["a", "gather_out", "b", "c", "signal", "dtype", "block_size"])
def test_all_gather_matmul_that_does_not_fit(engine, world, memory, wrong):
    """Matrices, signals and blocks that do not fit are refused on every rank, with what was found."""
    both = GatherAndMultiply(engine, world, memory, torch.float32)
    a, b = whole_numbers(world, memory, torch.float32, ROWS)
    arguments = {"a": a, "b": b, "c": both.product, "gather_out": both.gathered, "signal": both.signal}
    change, found = {
        "a": ({"a": a[0]}, rf"\[{INNER}\]"),
        "gather_out": ({"gather_out": both.gathered[1:]}, rf"\[{world.size * ROWS - 1}, {INNER}\]"),
        "b": ({"b": b[1:]}, rf"\[{INNER - 1}, {COLUMNS}\]"),
        "c": ({"c": both.product[1:]}, rf"\[{world.size * ROWS - 1}, {COLUMNS}\]"),
        "signal": ({"signal": both.signal[1:]}, rf"\b{world.size - 1}\b"),
        "dtype": ({"b": b.double()}, "float64"),
        "block_size": ({"block_size": 0}, r"\b0\b"),
    }[wrong]
    with pytest.raises(ValueError, match=found):
        engine.fused_all_gather_matmul(**arguments | change)


@contract("SM-2-01")
@pytest.mark.parametrize("wrong", ["x1", "rows", "x2", "symm_tensor", "reduce_op"])
def test_matmul_reduce_scatter_that_does_not_fit(engine, world, memory, wrong):
    """Rows that ranks do not divide, other matrices that do not fit and unknown operations are refused and named."""
    both = MultiplyAndScatter(engine, world, memory, torch.float32)
    rows = world.size * ROWS
    a, b = whole_numbers(world, memory, torch.float32, rows)
    arguments = {"x1": a, "x2": b, "symm_tensor": both.arriving, "signal": both.signal}
    change, found = {
        "x1": ({"x1": a[0]}, rf"\[{INNER}\]"),
        "rows": ({"x1": a[1:]}, rf"\b{rows - 1}\b.*\b{world.size}\b"),
        "x2": ({"x2": b[1:]}, rf"\[{INNER - 1}, {COLUMNS}\]"),
        "symm_tensor": ({"symm_tensor": both.arriving[1:]}, rf"\[{rows - 1}, {COLUMNS}\]"),
        "reduce_op": ({"reduce_op": "max"}, "max"),
    }[wrong]
    with pytest.raises(ValueError, match=found):
        engine.fused_matmul_reduce_scatter(**arguments | change)

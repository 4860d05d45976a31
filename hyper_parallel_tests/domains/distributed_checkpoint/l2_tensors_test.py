"""Tensors of all kinds, saved and loaded on the same ranks: bit for bit."""

from __future__ import annotations

import math

import pytest
import torch

from hyper_parallel_tests.domains.distributed_checkpoint.plans import Placed, local, placed_on
from hyper_parallel_tests.domains.distributed_checkpoint.setting import bits, shared_folder
from hyper_parallel_tests.harness import assert_equal, contract

FLOATS = [torch.float32, torch.float64, torch.bfloat16, torch.float16]
OTHERS = [torch.uint8, torch.int8, torch.int32, torch.int64, torch.bool, torch.complex64]
SIZES = {"matrix": (5, 3), "one_row": (1, 4), "no_rows": (0, 3), "row": (7,)}
LAYOUTS = {"plain": None, "replicas": (None,), "rows": (0,), "last": (-1,)}


def some(size, dtype):
    """Numbers that are all different as far as the dtype can tell them apart."""
    return (torch.arange(math.prod(size)) % 251 + 1).reshape(size).to(dtype)


def there_and_back(engine, world, placed):
    """Tensors as they lie on a mesh, by key, and what is in a checkpoint of them, loaded into the like."""
    mesh = world.mesh(dp=world.size)
    saved = {key: placed_on(engine, mesh, one) for key, one in placed.items()}
    empty = {key: Placed(torch.zeros_like(one.whole), one.dims) for key, one in placed.items()}
    room = {key: placed_on(engine, mesh, one) for key, one in empty.items()}
    with shared_folder(world) as folder:
        engine.save(saved, checkpoint_id=folder)
        engine.load(room, checkpoint_id=folder)
    return saved, room


def assert_same_bits(saved, loaded):
    assert {key: one.dtype for key, one in loaded.items()} == {key: one.dtype for key, one in saved.items()}
    assert_equal(*({key: bits(local(one)) for key, one in state.items()} for state in (loaded, saved)))


@contract("CK-2-01")
@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS)
@pytest.mark.parametrize("size", SIZES.values(), ids=SIZES)
def test_every_dtype(engine, world, size, layout):
    """Tensors of each dtype come back with their bits, evenly divided or not, and where ranks have nothing."""
    dims = layout and tuple(dim and dim % len(size) for dim in layout)
    placed = {str(dtype): Placed(some(size, dtype), dims) for dtype in FLOATS + OTHERS}
    assert_same_bits(*there_and_back(engine, world, placed))


@contract("CK-2-01")
@pytest.mark.parametrize("dtype", FLOATS, ids=lambda dtype: str(dtype).removeprefix("torch."))
def test_special_numbers(engine, world, dtype):
    """Infinities, NaN, both zeros, and the smallest and largest numbers come back with their bits."""
    numbers = torch.finfo(dtype)
    special = [math.inf, -math.inf, math.nan, 0.0, -0.0, numbers.tiny, numbers.tiny / 2, numbers.max, numbers.eps]
    whole = torch.tensor(special, dtype=dtype)
    placed = {"plain": Placed(whole, None), "rows": Placed(whole, (0,))}
    assert_same_bits(*there_and_back(engine, world, placed))


@contract("CK-2-01")
def test_scalar_tensors(engine, world):
    """Tensors of no dimension come back, plain and replicated."""
    whole = {str(dtype): some((), dtype) for dtype in FLOATS + OTHERS}
    placed = {f"{key} {dims}": Placed(one, dims) for key, one in whole.items() for dims in (None, (None,))}
    assert_same_bits(*there_and_back(engine, world, placed))


VIEWS = {
    "transposed": lambda base: base.t(),
    "every_second": lambda base: base[::2, 1:],
    "expanded": lambda base: base[:1].expand(3, -1),
    "permuted": lambda base: base.view(2, 2, 6).permute(2, 0, 1),
    "overlapping": lambda base: base.view(-1).as_strided((4, 3), (2, 1)),
}


@contract("CK-2-01")
@pytest.mark.parametrize("view", VIEWS.values(), ids=VIEWS)
def test_views(engine, world, view):
    """A view comes back as the numbers that it shows, whatever its strides."""
    saved = {"view": view(some((4, 6), torch.float32))}
    with shared_folder(world) as folder:
        engine.save(saved, checkpoint_id=folder)
        room = {"view": torch.zeros(saved["view"].shape)}
        engine.load(room, checkpoint_id=folder)
    assert_equal(room["view"], saved["view"].contiguous())


@contract("CK-2-01")
@pytest.mark.parametrize("view", ["transposed", "every_second", "permuted"])
def test_room_that_is_a_view(engine, world, view):
    """What is loaded into a view goes to the elements that it shows, and to no others."""
    whole, base = some((4, 6), torch.float32), torch.zeros(4, 6)
    expected = base.clone()
    VIEWS[view](expected).copy_(VIEWS[view](whole))
    with shared_folder(world) as folder:
        engine.save({"t": VIEWS[view](whole).contiguous()}, checkpoint_id=folder)
        engine.load({"t": VIEWS[view](base)}, checkpoint_id=folder)
    assert_equal(base, expected)


@contract("CK-2-01")
def test_tensors_of_one_memory(engine, world):
    """Tensors that share memory, whole or in part, come back each with its own numbers."""
    base = some((4, 6), torch.float32)
    saved = {"all": base, "again": base, "row": base[1], "transposed": base.t()}
    with shared_folder(world) as folder:
        engine.save(saved, checkpoint_id=folder)
        room = {key: torch.zeros(one.shape) for key, one in saved.items()}
        engine.load(room, checkpoint_id=folder)
    assert_equal(room, {key: one.contiguous() for key, one in saved.items()})


@contract("CK-2-01")
def test_tensors_that_want_gradients(engine, world):
    """A parameter comes back like any tensor, and still wants a gradient."""
    parameter, room = torch.nn.Parameter(some((3, 2), torch.float32)), torch.nn.Parameter(torch.zeros(3, 2))
    with shared_folder(world) as folder:
        engine.save({"p": parameter}, checkpoint_id=folder)
        engine.load({"p": room}, checkpoint_id=folder)
    assert_equal(room.detach(), parameter.detach())
    assert room.requires_grad
    assert room.is_leaf

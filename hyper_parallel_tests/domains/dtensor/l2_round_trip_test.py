"""From a full tensor to a distributed one and back, bit by bit, for every dtype."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from hyper_parallel_tests.domains.dtensor.setting import numbers, on, placed
from hyper_parallel_tests.harness import assert_equal, contract

DTYPES = {
    str(dtype).removeprefix("torch."): dtype
    for dtype in (
        torch.float64,
        torch.float32,
        torch.bfloat16,
        torch.float16,
        torch.complex64,
        torch.int64,
        torch.int32,
        torch.int16,
        torch.int8,
        torch.uint8,
        torch.bool,
    )
}
KINDS = ("R", "S0", "S1")


def sample(dtype: torch.dtype, *size: int, seed: int = 0) -> torch.Tensor:
    """Numbers of this dtype that differ, as far as it has different ones."""
    return (
        numbers(*size, seed=seed).abs().to(dtype)
        if dtype in (torch.uint8, torch.bool)
        else numbers(*size, seed=seed).to(dtype)
    )


@contract("DT-2-03")
@pytest.mark.parametrize("dtype", DTYPES)
def test_distribute_and_gather(engine, world, dtype):
    """A tensor that is divided and gathered again is the tensor, in dtype, shape and bits."""
    mesh, full = world.mesh(tp=world.size), sample(DTYPES[dtype], 8, 4)
    for kind in KINDS:
        found = on(engine, mesh, full, kind)
        assert found.dtype == found.to_local().dtype == full.dtype
        assert_equal(found.full_tensor(), full, what=f"{kind} of {dtype}")


@contract("DT-2-03")
def test_parts_of_different_sizes(engine, world):
    """The same where the parts differ in size, where some are empty, for scalars and for empty tensors."""
    mesh = world.mesh(tp=world.size)
    for dtype in (torch.float32, torch.bfloat16, torch.int64, torch.bool):
        for size, kinds in [((7, 5), KINDS), ((1, 3), KINDS), ((0, 4), KINDS), ((), ("R",)), ((5,), ("R", "S0"))]:
            full = sample(dtype, *size)
            for kind in kinds:
                assert_equal(on(engine, mesh, full, kind).full_tensor(), full, what=f"{kind} of {dtype}, {size}")


@contract("DT-2-03")
@pytest.mark.parametrize("dtype", DTYPES)
def test_distribute_the_first_ranks_data(engine, world, dtype):
    """With `src_data_rank` the values are that rank's, whatever the others have."""
    mesh, full = world.mesh(tp=world.size), sample(DTYPES[dtype], 8, 4)
    own = sample(DTYPES[dtype], 8, 4, seed=world.rank)
    for kind in KINDS:
        found = engine.distribute_tensor(own, mesh, placed(engine, kind), src_data_rank=0)
        assert_equal(found.full_tensor(), full, what=f"{kind} of {dtype}")


@contract("DT-2-03")
@pytest.mark.parametrize("dtype", ["float64", "float32", "bfloat16", "float16"])
def test_distribute_a_module(engine, world, dtype):
    """The parameters and buffers of a distributed module are those that it had, and it computes what it did."""
    mesh = world.mesh(tp=world.size)

    def module() -> nn.Module:
        made = nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 4)).to(DTYPES[dtype])
        for seed, parameter in enumerate(made.parameters()):
            nn.init.zeros_(parameter).data.add_(numbers(*parameter.shape, seed=seed))
        made.register_buffer("steps", torch.tensor(3))
        return made

    def by_columns(name, part, mesh):
        if name == "0":
            for key, parameter in list(part.named_parameters(recurse=False)):
                part.register_parameter(key, nn.Parameter(on(engine, mesh, parameter.detach(), "S0")))

    plain, found = module(), engine.distribute_module(module(), mesh, by_columns)
    wanted = dict(plain.state_dict())
    assert_equal({name: one.full_tensor() for name, one in found.state_dict().items()}, wanted, what="state")
    batch = numbers(4, 4, seed=9).to(DTYPES[dtype])
    output = found(on(engine, mesh, batch, "R")).full_tensor()
    assert output.dtype == DTYPES[dtype]
    if dtype in ("float64", "float32"):
        assert_equal(output.detach(), plain(batch).detach(), what="output")


@contract("DT-2-03")
def test_terms_of_a_tensor(engine, world):
    """A tensor that is distributed in terms is what they sum to, or what they average or are at most."""
    mesh, full = world.mesh(tp=world.size), numbers(8, 4)
    for kind in ("P", "Pavg", "Pmax"):
        assert_equal(on(engine, mesh, full, kind).full_tensor(), full, what=kind)


@contract("DT-2-03")
def test_gradient_need_goes_along(engine, world):
    """A tensor that needs a gradient becomes a distributed leaf that needs one."""
    mesh = world.mesh(tp=world.size)
    found = engine.distribute_tensor(numbers(8, 4).requires_grad_(), mesh, placed(engine, "S0"))
    assert found.requires_grad
    assert found.is_leaf
    engine.backward(found * 3, torch.ones(8, 4))
    assert_equal(engine.full_gradient(found), torch.full((8, 4), 3.0), what="gradient")


@contract("DT-2-03")
def test_mesh_in_another_order(engine, world):
    """On a mesh whose ranks do not ascend, parts go by coordinate, and the whole is put together by coordinate."""
    ranks = list(reversed(range(world.size)))
    mesh = engine.init_device_mesh(world.device.type, (world.size,), mesh_dim_names=("tp",), rank_list=ranks)
    for dim in (0, 1):
        found = engine.distribute_tensor(numbers(8, 4), mesh, [engine.Shard(dim)])
        wanted = numbers(8, 4).chunk(world.size, dim)[world.size - 1 - world.rank]
        assert_equal(found.to_local(), wanted, what=f"part by {dim}")
        assert_equal(found.full_tensor(), numbers(8, 4), what=f"full tensor by {dim}")

"""What each combination of a policy's fields comes to, in a world where nothing communicates."""

from __future__ import annotations

from itertools import product

import pytest
import torch
from torch import Tensor, nn

from hyper_parallel_tests.harness import contract, trace

BF16, FP16, FP32 = torch.bfloat16, torch.float16, torch.float32
DTYPES = {"unset": None, "fp32": FP32, "bf16": BF16, "fp16": FP16}

each_param_dtype = pytest.mark.parametrize("param_dtype", DTYPES)
each_reduce_dtype = pytest.mark.parametrize("reduce_dtype", DTYPES)


@pytest.fixture
def mesh(engine):
    """One dimension of two ranks, seen from rank 0; nothing communicates."""
    with engine.simulated_world(rank=0, world_size=2):
        yield engine.init_device_mesh("cpu", (2,), mesh_dim_names=("dp",))


class Probe(nn.Module):
    """A matrix product that notes its dtypes, and casts what nobody has cast."""

    def __init__(self, stored: torch.dtype) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(4, 4, dtype=stored))
        self.seen: dict[str, torch.dtype] = {}

    def forward(self, inputs: Tensor) -> Tensor:
        self.seen = {"input": inputs.dtype, "param": self.weight.dtype}
        return inputs.to(self.weight.dtype) @ self.weight


def observed(engine, mesh, policy, stored: torch.dtype, given: torch.dtype) -> dict[str, torch.dtype]:
    """Dtypes of one forward and backward on inputs of dtype `given`."""
    probe = engine.fully_shard(Probe(stored), mesh=mesh, mp_policy=policy)
    with trace.collectives() as sent:
        output = probe(torch.ones(2, 4, dtype=given))
        output.sum().backward()
    gathered, reduced = ({getattr(torch, one.dtype) for one in sent.of(op)} for op in ("all_gather", "reduce_scatter"))
    return probe.seen | {
        "output": output.dtype,
        "gathered": gathered.pop(),
        "reduced": reduced.pop(),
        "stored gradient": probe.weight.grad.dtype,
        "shard": probe.weight.dtype,
    }


def documented(param, reduce, output, cast: bool, main_grad: bool, stored, given) -> dict[str, torch.dtype]:
    """What the fields promise."""
    computed = param or stored
    return {
        "input": computed if cast and param else given,
        "param": computed,
        "output": output or computed,
        "gathered": computed,
        "reduced": FP32 if main_grad else reduce or computed,
        "stored gradient": stored,
        "shard": stored,
    }


def departures(engine, mesh, param_dtype, reduce_dtype, stored, main_grad: bool) -> dict[str, object]:
    """For each combination of the other fields what differs from the documented dtypes: (found, documented)."""
    param, reduce = DTYPES[param_dtype], DTYPES[reduce_dtype]
    found = {}
    for output, cast, given in product(DTYPES, (True, False), (FP32, BF16)):
        policy = engine.MixedPrecisionPolicy(param, reduce, DTYPES[output], cast, main_grad)
        ours = observed(engine, mesh, policy, stored, given)
        wanted = documented(param, reduce, DTYPES[output], cast, main_grad, stored, given)
        for what in wanted:
            if ours[what] != wanted[what]:
                found[f"{what} with output_dtype {output}, cast {cast}, {given} inputs"] = (ours[what], wanted[what])
    return found


@contract("MP-0-01")
@each_param_dtype
@each_reduce_dtype
@pytest.mark.parametrize("stored", [FP32, BF16], ids=["stored_fp32", "stored_bf16"])
def test_fields_resolve_to_documented_dtypes(engine, mesh, param_dtype, reduce_dtype, stored):
    """Without a main gradient each field decides its dtype, and None leaves it as it comes."""
    assert departures(engine, mesh, param_dtype, reduce_dtype, stored, main_grad=False) == {}


@contract("MP-0-01")
@each_param_dtype
@pytest.mark.parametrize("reduce_dtype", ["unset", "fp32"])
def test_main_grad_is_fp32_from_the_reduction_on(engine, mesh, param_dtype, reduce_dtype):
    """With a main gradient the reduction is in fp32, whatever parameters are computed in."""
    assert departures(engine, mesh, param_dtype, reduce_dtype, FP32, main_grad=True) == {}


@contract("MP-0-01")
@each_param_dtype
@pytest.mark.parametrize("stored", [BF16, FP16], ids=["stored_bf16", "stored_fp16"])
def test_main_grad_of_parameters_stored_low(engine, mesh, param_dtype, stored):
    """Reduction and gradient are in fp32 beside parameters that are not, or the flag is refused by its name."""
    policy = engine.MixedPrecisionPolicy(DTYPES[param_dtype], apply_grad_on_fp32_main_grad=True)
    try:
        ours = observed(engine, mesh, policy, stored, FP32)
    except ValueError as error:
        assert "apply_grad_on_fp32_main_grad" in str(error)  # noqa: PT017 - either is right
        return
    assert (ours["reduced"], ours["stored gradient"]) == (FP32, FP32)


@contract("MP-0-01")
@each_param_dtype
@pytest.mark.parametrize("reduce_dtype", ["bf16", "fp16"])
def test_main_grad_of_rounded_reductions_is_refused(engine, param_dtype, reduce_dtype):
    """A main gradient from a low-precision reduction is an error with every param_dtype; it names both fields."""
    with pytest.raises(ValueError, match="apply_grad_on_fp32_main_grad.*reduce_dtype"):
        engine.MixedPrecisionPolicy(DTYPES[param_dtype], DTYPES[reduce_dtype], apply_grad_on_fp32_main_grad=True)

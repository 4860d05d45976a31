"""Mixed precision and offload policies: fields, defaults and contradictions."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from torch import nn

from hyper_parallel_tests.harness import contract

DTYPES = ("param_dtype", "reduce_dtype", "output_dtype")


@pytest.fixture
def mesh(engine):
    """One dimension of two ranks, seen from rank 0; nothing communicates."""
    with engine.simulated_world(rank=0, world_size=2):
        yield engine.init_device_mesh("cpu", (2,), mesh_dim_names=("dp",))


@contract("FS-0-03")
def test_default_policy_casts_nothing(engine):
    """Without arguments no dtype is set, inputs would be cast, and gradients have no fp32 main copy."""
    policy = engine.MixedPrecisionPolicy()
    assert [getattr(policy, field) for field in DTYPES] == [None, None, None]
    assert policy.cast_forward_inputs is True
    assert policy.apply_grad_on_fp32_main_grad is False


@contract("FS-0-03")
def test_policy_keeps_what_it_is_given(engine):
    """Each field, given by position in the documented order, is the field read back."""
    policy = engine.MixedPrecisionPolicy(torch.bfloat16, torch.float32, torch.float16, False, True)
    assert [getattr(policy, field) for field in DTYPES] == [torch.bfloat16, torch.float32, torch.float16]
    assert policy.cast_forward_inputs is False
    assert policy.apply_grad_on_fp32_main_grad is True


@contract("FS-0-03")
def test_policy_is_a_value(engine):
    """A policy cannot be changed after the calls that share it, and equal settings are equal."""
    policy = engine.MixedPrecisionPolicy(param_dtype=torch.bfloat16)
    with pytest.raises(dataclasses.FrozenInstanceError):
        policy.param_dtype = torch.float16
    assert policy == engine.MixedPrecisionPolicy(param_dtype=torch.bfloat16)
    assert policy != engine.MixedPrecisionPolicy(param_dtype=torch.float16)


@contract("FS-0-03")
@pytest.mark.parametrize("field", DTYPES)
@pytest.mark.parametrize("dtype", [torch.int64, torch.bool, "bfloat16"], ids=str)
def test_dtype_that_is_not_floating_point_is_an_error(engine, field, dtype):
    """Anything but a floating-point dtype is refused by the name of the field."""
    with pytest.raises(ValueError, match=field):
        engine.MixedPrecisionPolicy(**{field: dtype})


@contract("FS-0-03")
@pytest.mark.parametrize("reduce_dtype", [torch.bfloat16, torch.float16], ids=str)
def test_main_grad_contradicts_low_precision_reduction(engine, reduce_dtype):
    """An fp32 main gradient that would be fed from rounded reductions is refused."""
    with pytest.raises(ValueError, match="apply_grad_on_fp32_main_grad.*reduce_dtype"):
        engine.MixedPrecisionPolicy(reduce_dtype=reduce_dtype, apply_grad_on_fp32_main_grad=True)


@contract("FS-0-03")
def test_offload_policies_and_their_default(engine):
    """Host offload is a kind of offload policy and pins memory unless told not to."""
    assert issubclass(engine.CPUOffloadPolicy, engine.OffloadPolicy)
    assert engine.CPUOffloadPolicy().pin_memory is True
    assert engine.CPUOffloadPolicy(pin_memory=False).pin_memory is False


@contract("FS-0-03")
def test_parameter_both_ignored_and_replicated_is_an_error(engine, mesh):
    """A parameter cannot be left alone and kept in step over the ranks; the message names it."""
    layer = nn.Linear(4, 4)
    with pytest.raises(ValueError, match="bias.*ignored_params.*replicate_params"):
        engine.fully_shard(layer, mesh=mesh, ignored_params={layer.bias}, replicate_params={layer.bias})


@contract("FS-0-03")
def test_parameter_both_replicated_and_sharded_is_an_error(engine, mesh):
    """replicate_params contradicts a shard_placement_fn that wants the same parameter divided; both are named."""
    layer = nn.Linear(4, 4)
    with pytest.raises(ValueError, match="replicate_params.*shard_placement_fn"):
        engine.fully_shard(
            layer, mesh=mesh, replicate_params={layer.bias}, shard_placement_fn=lambda _: engine.Shard(0)
        )

"""Which backend serves which device."""

from __future__ import annotations

import pytest
import torch

from hyper_parallel_tests.harness import contract


@contract("COL-0-05")
@pytest.mark.parametrize(("device", "backend"), [("cpu", "gloo"), ("cuda", "nccl"), ("npu", "hccl")])
def test_backend_of_a_device_type(engine, device, backend):
    """Each device type has its backend, whether or not such a device is here."""
    assert engine.get_default_backend_for_device(device) == backend


@contract("COL-0-05")
@pytest.mark.parametrize(
    ("device", "backend"),
    [(torch.device("cpu"), "gloo"), (torch.device("cuda", 3), "nccl"), ("cuda:3", "nccl"), ("npu:1", "hccl")],
    ids=["cpu", "cuda-3", "cuda-3-by-name", "npu-1-by-name"],
)
def test_backend_of_one_device(engine, device, backend):
    """An indexed device has the backend of its type."""
    assert engine.get_default_backend_for_device(device) == backend


@contract("COL-0-05")
def test_unknown_device_type(engine):
    """A device type without a backend is refused, and the message names the type and the known ones."""
    with pytest.raises(ValueError, match="'abacus'.*cpu.*cuda.*npu"):
        engine.get_default_backend_for_device("abacus")

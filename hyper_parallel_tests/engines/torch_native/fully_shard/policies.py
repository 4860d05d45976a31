"""Mixed precision and offload policies, and their translation to FSDP2's."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch.distributed import fsdp


@dataclass(frozen=True)
class MixedPrecisionPolicy:
    """Dtypes around a wrapped module; see the port. FSDP2's policy with HyperParallel's main-grad field."""

    param_dtype: torch.dtype | None = None
    reduce_dtype: torch.dtype | None = None
    output_dtype: torch.dtype | None = None
    cast_forward_inputs: bool = True
    apply_grad_on_fp32_main_grad: bool = False

    def __post_init__(self) -> None:
        for field in ("param_dtype", "reduce_dtype", "output_dtype"):
            dtype = getattr(self, field)
            if dtype is None or (isinstance(dtype, torch.dtype) and dtype.is_floating_point):
                continue
            raise ValueError(f"{field} must be a floating-point torch.dtype or None, got {dtype!r}")
        if self.apply_grad_on_fp32_main_grad and self.reduce_dtype not in (None, torch.float32):
            raise ValueError(
                f"apply_grad_on_fp32_main_grad contradicts reduce_dtype={self.reduce_dtype}: what the sum "
                "has rounded cannot become fp32 again; leave it out or set it to torch.float32"
            )

    def to_fsdp(self) -> fsdp.MixedPrecisionPolicy:
        """FSDP2's policy of the same effect; for parameters stored in fp32, ``.grad`` is the main grad."""
        return fsdp.MixedPrecisionPolicy(
            param_dtype=self.param_dtype,
            reduce_dtype=torch.float32 if self.apply_grad_on_fp32_main_grad else self.reduce_dtype,
            output_dtype=self.output_dtype,
            cast_forward_inputs=self.cast_forward_inputs,
        )


@dataclass(frozen=True)
class OffloadPolicy:
    """Everything stays on the device."""

    def to_fsdp(self) -> fsdp.OffloadPolicy:
        """FSDP2's policy of the same effect."""
        return fsdp.OffloadPolicy()


@dataclass(frozen=True)
class CPUOffloadPolicy(OffloadPolicy):
    """Shards, gradients and optimizer state live in host memory."""

    pin_memory: bool = True

    def to_fsdp(self) -> fsdp.OffloadPolicy:
        """FSDP2's policy of the same effect."""
        # Pinning is a property of transfers to an accelerator; without one torch refuses to pin.
        return fsdp.CPUOffloadPolicy(pin_memory=self.pin_memory and torch.accelerator.is_available())

"""Policies of sharded parameters: HyperParallel's."""

from __future__ import annotations

import inspect
from typing import Any

from hyper_parallel_tests.engines.hyper_parallel.library import offered, refuse
from hyper_parallel_tests.engines.port import Unsupported

__all__ = ["CPUOffloadPolicy", "MixedPrecisionPolicy", "OffloadPolicy"]

_MAIN_GRAD = "apply_grad_on_fp32_main_grad"


def _policy(name: str) -> Any:
    return offered(
        f"hyper_parallel.core.fully_shard.utils:{name}",
        f"hyper_parallel.platform.torch.fully_shard.utils:{name}",
        reason="this version of the library has no such policy",
    )


_MixedPrecisionPolicy = _policy("MixedPrecisionPolicy")
OffloadPolicy = _policy("OffloadPolicy")
CPUOffloadPolicy = _policy("CPUOffloadPolicy")

if isinstance(_MixedPrecisionPolicy, Unsupported) or _MAIN_GRAD in inspect.signature(_MixedPrecisionPolicy).parameters:
    MixedPrecisionPolicy = _MixedPrecisionPolicy
else:

    class MixedPrecisionPolicy(_MixedPrecisionPolicy):
        """The library's, which in this version has no main gradients."""

        apply_grad_on_fp32_main_grad = False

        def __init__(
            self,
            param_dtype: Any = None,
            reduce_dtype: Any = None,
            output_dtype: Any = None,
            cast_forward_inputs: bool = True,
            apply_grad_on_fp32_main_grad: bool = False,
        ) -> None:
            if apply_grad_on_fp32_main_grad:
                refuse("MixedPrecisionPolicy", f"this version of the library has it without {_MAIN_GRAD}")
            super().__init__(param_dtype, reduce_dtype, output_dtype, cast_forward_inputs)

"""Gradient clipping: HyperParallel's, which newer versions have."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from torch import Tensor, nn

from hyper_parallel_tests.engines.hyper_parallel.library import find, refuse
from hyper_parallel_tests.engines.port import Unsupported

_clip_grad_norm_ = find(
    "hyper_parallel:clip_grad_norm_",
    "hyper_parallel.core.utils.clip_grad:clip_grad_norm_",
    "hyper_parallel.platform.torch.clip_grad:clip_grad_norm_",
)


def clip_grad_norm_(
    parameters: nn.Module | Tensor | Iterable[Tensor],
    max_norm: float,
    norm_type: float = 2.0,
    error_if_nonfinite: bool = False,
    foreach: bool | None = None,
    *,
    pp_mesh: Any = None,
) -> Tensor:
    """See the port."""
    if pp_mesh is not None:
        refuse("clip_grad_norm_", "the library's norm is of one pipeline stage")
    return _clip_grad_norm_(parameters, max_norm, norm_type, error_if_nonfinite, foreach)


if _clip_grad_norm_ is None:
    clip_grad_norm_ = Unsupported("this version of the library has no gradient clipping")

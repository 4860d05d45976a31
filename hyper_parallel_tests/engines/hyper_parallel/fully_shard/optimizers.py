"""Optimizers of sharded parameters.

The library's distributed tensors know no operation of an optimizer. Its programs step under ``SkipDTensorDispatch``,
which makes them plain tensors of this rank's part; here every step of every optimizer is under it.
"""

from __future__ import annotations

from typing import Any

from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from hyper_parallel_tests.engines.hyper_parallel.library import find

_SkipDTensorDispatch = find("hyper_parallel:SkipDTensorDispatch", "hyper_parallel.core.dtensor:SkipDTensorDispatch")


def _enter(optimizer: Optimizer, args: Any, options: Any) -> None:
    _SkipDTensorDispatch().__enter__()


def _leave(optimizer: Optimizer, args: Any, options: Any) -> None:
    _SkipDTensorDispatch().__exit__(None, None, None)


if _SkipDTensorDispatch is not None:
    register_optimizer_step_pre_hook(_enter)
    register_optimizer_step_post_hook(_leave)

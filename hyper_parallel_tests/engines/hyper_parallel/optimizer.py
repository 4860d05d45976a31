"""Optimizers: HyperParallel's, which newer versions have."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import nn

from hyper_parallel_tests.engines.hyper_parallel.library import find, refuse
from hyper_parallel_tests.engines.port import Unsupported

_PACKAGE = "hyper_parallel.core.optimizer"
_REASON = "this version of the library has no optimizers of its own"

_AdamW = find(f"{_PACKAGE}:AdamW", f"{_PACKAGE}.adamw:AdamW")
_Muon = find(f"{_PACKAGE}:Muon", f"{_PACKAGE}.muon:Muon")
_ChainedOptimizer = find(f"{_PACKAGE}:ChainedOptimizer", f"{_PACKAGE}.optimizer:ChainedOptimizer")
_get_hyper_optimizer = find(f"{_PACKAGE}:get_hyper_optimizer")


def AdamW(
    params: Iterable[Any],
    lr: float = 1e-3,
    betas: tuple[float, float] = (0.9, 0.999),
    eps: float = 1e-8,
    weight_decay: float = 1e-2,
    foreach: bool | None = None,
) -> torch.optim.Optimizer:
    """See the port."""
    if foreach is not None:
        refuse("AdamW", "the library's AdamW has one implementation")
    return _AdamW(params, lr=lr, betas=betas, eps=eps, weight_decay=weight_decay)


def Muon(
    params: Iterable[Any],
    lr: float = 2e-2,
    weight_decay: float = 0.1,
    matched_adamw_rms: float = 0.2,
    momentum: float = 0.95,
    nesterov: bool = True,
    ns_steps: int = 5,
) -> torch.optim.Optimizer:
    """See the port."""
    options = {"weight_decay": weight_decay, "momentum": momentum, "nesterov": nesterov, "ns_steps": ns_steps}
    return _Muon(params, lr=lr, matched_adamw_rms=matched_adamw_rms, **options)


def ChainedOptimizer(model: nn.Module, optimizers: Mapping[str, torch.optim.Optimizer]) -> Any:
    """See the port."""
    # By names for one optimizer too.
    return _ChainedOptimizer(model, dict(optimizers), flatten=True)


def get_hyper_optimizer(
    model: nn.Module, *, muon: Mapping[str, Any] | None = None, adamw: Mapping[str, Any] | None = None
) -> Any:
    """See the port."""
    if "muon" not in inspect.signature(_get_hyper_optimizer).parameters:
        refuse("get_hyper_optimizer", "this version of the library leaves it to its user which parameter is whose")
    return _get_hyper_optimizer(model, muon=muon, adamw=adamw)


if _AdamW is None:
    AdamW = Unsupported(_REASON)
if _Muon is None:
    Muon = Unsupported(_REASON)
if _ChainedOptimizer is None:
    ChainedOptimizer = Unsupported(_REASON)
if _get_hyper_optimizer is None:
    get_hyper_optimizer = Unsupported(_REASON)

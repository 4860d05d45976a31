"""Which optimizer a parameter goes to."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from hyper_parallel_tests.engines.torch_native.optimizer.adamw import AdamW
from hyper_parallel_tests.engines.torch_native.optimizer.chain import ChainedOptimizer
from hyper_parallel_tests.engines.torch_native.optimizer.muon import Muon
from hyper_parallel_tests.engines.torch_native.optimizer.names import bare_name

_HEADS = ("lm_head", "output", "output_layer")
_MADE_BY = {"adamw": AdamW, "muon": Muon}


@dataclass
class _Use:
    """A parameter and where it is used, under each of its names."""

    parameter: nn.Parameter
    names: list[str] = field(default_factory=list)
    table: bool = False
    norm: bool = False

    @property
    def name(self) -> str:
        """The first one, by which a state dict knows it."""
        return self.names[0]


def get_hyper_optimizer(
    model: nn.Module, *, muon: Mapping[str, Any] | None = None, adamw: Mapping[str, Any] | None = None
) -> ChainedOptimizer:
    """See the port."""
    options = {name: dict(given) for name, given in (("adamw", adamw), ("muon", muon)) if given is not None}
    patterns = {name: given.pop("param_patterns", []) for name, given in options.items()}
    for name, several in patterns.items():
        if isinstance(several, str):
            raise TypeError(f"param_patterns of {name} is {several!r}: expected a list of patterns")
    uses = _uses(model)
    owners = {use.name: _owner(use, patterns) for use in uses}
    if homeless := [name for name, owner in owners.items() if owner not in options]:
        raise ValueError(f"no optimizer is left for {', '.join(homeless)}: give adamw={{...}}, or freeze them")
    optimizers = {}
    for name, given in options.items():
        if own := [use for use in uses if owners[use.name] == name]:
            optimizers[name] = _MADE_BY[name](
                _groups(own) if name == "adamw" else [use.parameter for use in own], **given
            )
    return ChainedOptimizer(model, optimizers)


def _uses(model: nn.Module) -> list[_Use]:
    """Trainable parameters, each once, in the order of the model."""
    found: dict[nn.Parameter, _Use] = {}
    for path, module in model.named_modules(remove_duplicate=False):
        for name, parameter in module.named_parameters(recurse=False):
            if not parameter.requires_grad:
                continue
            use = found.setdefault(parameter, _Use(parameter))
            use.names.append(bare_name(model, f"{path}.{name}" if path else name))
            *_, layer, kind = ("", *use.names[-1].split("."))
            use.table |= kind == "weight" and (isinstance(module, nn.Embedding) or layer in _HEADS)
            use.norm |= "norm" in type(module).__name__.lower()
    return list(found.values())


def _owner(use: _Use, patterns: Mapping[str, list[str]]) -> str:
    """The name of the optimizer."""
    chosen = [name for name, several in patterns.items() if any(re.search(p, n) for p in several for n in use.names)]
    if len(chosen) > 1:
        raise ValueError(f"the patterns of {' and '.join(chosen)} both match {use.name}: a parameter has one optimizer")
    if chosen == ["muon"] and use.parameter.ndim != 2:
        raise ValueError(f"Muon's patterns match {use.name} of shape {tuple(use.parameter.shape)}: it steps matrices")
    if chosen:
        return chosen[0]
    return "muon" if "muon" in patterns and use.parameter.ndim == 2 and not use.table and not use.norm else "adamw"


def _groups(uses: list[_Use]) -> list[dict[str, Any]]:
    """AdamW's groups: those that are decayed, and those that are not."""
    decayed: list[torch.Tensor] = []
    others: list[torch.Tensor] = []
    for use in uses:
        (decayed if use.norm or use.parameter.ndim > 1 else others).append(use.parameter)
    groups = [{"params": decayed}, {"params": others, "weight_decay": 0.0}]
    return [group for group in groups if group["params"]]

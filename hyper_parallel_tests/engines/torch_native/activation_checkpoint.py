"""Activation checkpointing of torch_native: PyTorch's own, and a reference for policies as users write them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import nn
from torch._ops import OpOverload
from torch.distributed.algorithms._checkpoint import checkpoint_wrapper as wrapping
from torch.utils import checkpoint as regions
from torch.utils.checkpoint import CheckpointPolicy, create_selective_checkpoint_contexts, set_checkpoint_early_stop

__all__ = [
    "ActivationCheckpointConfig",
    "CheckpointPolicy",
    "apply_ac",
    "checkpoint",
    "checkpoint_wrapper",
    "create_selective_checkpoint_contexts",
    "set_checkpoint_early_stop",
]

_MODES = ("none", "full", "selective")
_CHECKS = ("default", "none")
_CONTAINERS = (nn.ModuleList, nn.ModuleDict, nn.Sequential)
# The operator of a matrix product by a linear layer's weight, and which of its arguments that weight is.
_WEIGHT_OF = {torch.ops.aten.mm.default: 1, torch.ops.aten.addmm.default: 2}


def checkpoint(
    function: Callable[..., Any],
    *args: Any,
    policy_fn: Callable[..., Any] | list[Any] | None = None,
    use_reentrant: bool = False,
    **kwargs: Any,
) -> Any:
    """See the port."""
    return regions.checkpoint(function, *args, use_reentrant=use_reentrant, **_contexts(policy_fn), **kwargs)


def checkpoint_wrapper(
    module: nn.Module,
    *,
    policy_fn: Callable[..., Any] | list[Any] | None = None,
    use_reentrant: bool = False,
    **options: Any,
) -> nn.Module:
    """See the port."""
    kind = wrapping.CheckpointImpl.REENTRANT if use_reentrant else wrapping.CheckpointImpl.NO_REENTRANT
    return wrapping.checkpoint_wrapper(module, kind, **_contexts(policy_fn), **options)


def _contexts(policy_fn: Any) -> dict[str, Any]:
    """The argument of PyTorch's regions that makes them selective."""
    return {} if policy_fn is None else {"context_fn": partial(create_selective_checkpoint_contexts, policy_fn)}


@dataclass(frozen=True)
class ActivationCheckpointConfig:
    """See the port."""

    mode: str = "selective"
    selective_ac_option: str = "2"
    op_sac_save_list: tuple[str, ...] = ()
    per_op_sac_force_recompute_mm_shapes_by_fqns: tuple[str, ...] = ()
    use_reentrant: bool = False
    preserve_rng_state: bool = True
    determinism_check: str = "default"
    early_stop: bool = True

    def __post_init__(self) -> None:
        self._require(self.mode in _MODES, "mode", f"one of {', '.join(_MODES)}")
        self._require(self.determinism_check in _CHECKS, "determinism_check", f"one of {', '.join(_CHECKS)}")
        option = str(self.selective_ac_option)
        positive = option.isdecimal() and int(option) > 0
        self._require(positive or option == "op", "selective_ac_option", "a number of layers from 1, or op")
        listed = self.op_sac_save_list
        named = isinstance(listed, (list, tuple)) and all(isinstance(one, str) for one in listed)
        self._require(named, "op_sac_save_list", "a list of names of operators, e.g. ['aten.mm.default']")
        operators = [_operator(name) for name in listed]
        if self.per_operator:
            self._require(operators, "op_sac_save_list", "at least one operator, e.g. aten.mm.default, with option op")
            self._require(not self.use_reentrant, "use_reentrant", "False with option op")

    @property
    def per_operator(self) -> bool:
        """Whether layers keep the outputs of some operators."""
        return self.mode == "selective" and self.selective_ac_option == "op"

    @property
    def every(self) -> int:
        """Layers of which one is a region; 0 where none is."""
        if self.mode == "none":
            return 0
        return 1 if self.mode == "full" or self.per_operator else int(self.selective_ac_option)

    def options(self, layer: nn.Module) -> dict[str, Any]:
        """Those of the wrapper of one layer."""
        return {
            "policy_fn": self._policy(layer) if self.per_operator else None,
            "use_reentrant": self.use_reentrant,
            "preserve_rng_state": self.preserve_rng_state,
            "determinism_check": self.determinism_check,
            "early_stop": self.early_stop,
        }

    def _policy(self, layer: nn.Module) -> Callable[..., CheckpointPolicy]:
        kept = {_operator(name) for name in self.op_sac_save_list}
        forced = self._forced_shapes(layer)

        def policy(_: Any, operator: Any, *args: Any, **__: Any) -> CheckpointPolicy:
            weight = _WEIGHT_OF.get(operator)
            if operator not in kept or (weight is not None and tuple(args[weight].shape) in forced):
                return CheckpointPolicy.PREFER_RECOMPUTE
            return CheckpointPolicy.MUST_SAVE

        return policy

    def _forced_shapes(self, layer: nn.Module) -> set[tuple[int, ...]]:
        """Shapes, as operators see them, of weights by which products are recomputed although they are listed."""
        shapes = set()
        for part in self.per_op_sac_force_recompute_mm_shapes_by_fqns:
            found = {name: module for name, module in layer.named_modules() if part in name}
            linear = [module for module in found.values() if isinstance(module, nn.Linear)]
            if not linear:
                raise ValueError(
                    "per_op_sac_force_recompute_mm_shapes_by_fqns must name nn.Linear modules of each layer, but "
                    f"{part!r} matches {', '.join(found) or 'nothing'}"
                )
            shapes |= {(module.in_features, module.out_features) for module in linear}
        return shapes

    def _require(self, good: object, field: str, allowed: str) -> None:
        if not good:
            raise ValueError(f"{field} is {getattr(self, field)!r}; it must be {allowed}")


def _operator(name: str) -> OpOverload:
    """The operator of a name such as aten.mm.default.

    Raises:
        ValueError: there is none; names the overloads that there are.
    """
    namespace, _, rest = name.partition(".")
    packet_name, _, overload = rest.partition(".")
    packet = getattr(getattr(torch.ops, namespace), packet_name, None) if packet_name else None
    found = getattr(packet, overload, None) if packet is not None and overload else None
    if not isinstance(found, OpOverload):
        known = [f"{namespace}.{packet_name}.{one}" for one in packet.overloads()] if packet is not None else []
        raise ValueError(
            f"op_sac_save_list has {name!r}, which is no operator with its overload: "
            + (f"choose from {', '.join(known)}" if known else "write it like aten.mm.default")
        )
    return found


def apply_ac(layers: nn.Module, ac_config: ActivationCheckpointConfig) -> None:
    """See the port."""
    if not isinstance(layers, _CONTAINERS):
        raise TypeError(f"expected a ModuleList, ModuleDict or Sequential of layers, got {type(layers).__name__}")
    named = list(layers.named_children())
    for name, layer in named:
        if isinstance(layer, wrapping.CheckpointWrapper):
            raise ValueError(f"layer {name!r} is wrapped already: apply one configuration, once")
    for number, (name, layer) in enumerate(named, start=1):
        if ac_config.every and number % ac_config.every == 0:
            layers.register_module(name, checkpoint_wrapper(layer, **ac_config.options(layer)))

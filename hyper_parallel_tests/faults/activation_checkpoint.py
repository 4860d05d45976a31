"""Faults of activation checkpointing on torch_native: which layers are regions."""

from __future__ import annotations

from typing import Any

from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper

from hyper_parallel_tests.faults import Patch, fault

_OURS = "hyper_parallel_tests.engines.torch_native.activation_checkpoint"
_CONFIG = f"{_OURS}:ActivationCheckpointConfig"


@fault(
    id="ac-layers-counted-from-zero",
    symptom="Selective recomputation saves less memory on some models than planned: other layers are regions.",
    capability="activation_checkpoint",
    layer="l0",
    must_fail=["AC-0-01"],
)
def layers_counted_from_zero(patch: Patch) -> None:
    @patch.around(f"{_OURS}:apply_ac", parameters=("layers", "ac_config"))
    def apply(original: Any, layers: Any, ac_config: Any) -> None:
        if ac_config.every < 2:
            original(layers, ac_config)
            return
        for number, (name, layer) in enumerate(list(layers.named_children())):
            if number % ac_config.every == 0:
                patch.reached()
                layers.register_module(name, checkpoint_wrapper(layer))


@fault(
    id="ac-count-goes-on-over-models",
    symptom="The second stage or the second model of a process has other layers as regions than the first.",
    capability="activation_checkpoint",
    layer="l0",
    must_fail=["AC-0-01"],
)
def count_goes_on_over_models(patch: Patch) -> None:
    counted = 0

    @patch.around(f"{_OURS}:apply_ac", parameters=("layers", "ac_config"))
    def apply(original: Any, layers: Any, ac_config: Any) -> None:
        nonlocal counted
        if ac_config.every < 2:
            original(layers, ac_config)
            return
        for name, layer in list(layers.named_children()):
            counted += 1
            if counted % ac_config.every == 0:
                patch.reached()
                layers.register_module(name, checkpoint_wrapper(layer))


@fault(
    id="ac-bad-policy-accepted",
    symptom="A misspelt mode trains without regions until memory runs out.",
    capability="activation_checkpoint",
    layer="l0",
    must_fail=["AC-0-01"],
)
def bad_policy_accepted(patch: Patch) -> None:
    @patch.around(f"{_CONFIG}._require", parameters=("self", "good", "field", "allowed"))
    def require(_: Any, self: Any, good: object, field: str, allowed: str) -> None:
        if not good:
            patch.reached()


@fault(
    id="ac-wrapper-in-state-dict",
    symptom="A checkpoint that was written with recomputation does not load without it.",
    capability="activation_checkpoint",
    layer="l0",
    must_fail=["AC-0-01"],
)
def wrapper_in_state_dict(patch: Patch) -> None:
    target = "torch.distributed.algorithms._checkpoint.checkpoint_wrapper:ActivationWrapper._post_state_dict_hook"

    @patch.around(target, parameters=("module", "state_dict", "prefix"))
    def hook(_: Any, module: Any, state_dict: Any, prefix: str, *args: Any) -> Any:
        patch.reached()
        return state_dict


@fault(
    id="ac-options-written-and-not-read",
    symptom="Switches of the configuration, such as the reentrant kind or the early stop, have no effect.",
    capability="activation_checkpoint",
    layer="l0",
    must_fail=["AC-0-01"],
)
def options_written_and_not_read(patch: Patch) -> None:
    @patch.around(f"{_CONFIG}.options", parameters=("self", "layer"))
    def options(original: Any, self: Any, layer: Any) -> dict[str, Any]:
        patch.reached()
        return {"policy_fn": original(self, layer)["policy_fn"]}


@fault(
    id="ac-attributes-hidden",
    symptom="Code that reaches into a layer, to tie weights or to freeze, fails when recomputation is on.",
    capability="activation_checkpoint",
    layer="l0",
    must_fail=["AC-0-01"],
)
def attributes_hidden(patch: Patch) -> None:
    target = "torch.distributed.algorithms._checkpoint.checkpoint_wrapper:ActivationWrapper.__getattr__"

    @patch.around(target, parameters=("self", "name"))
    def own_alone(_: Any, self: Any, name: str) -> Any:
        patch.reached()
        return nn.Module.__getattr__(self, name)

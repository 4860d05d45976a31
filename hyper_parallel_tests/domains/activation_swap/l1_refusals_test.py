"""What is refused, and by which words."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from hyper_parallel_tests.domains.activation_swap.setting import Call, given, turn_of
from hyper_parallel_tests.harness import contract


@contract("SW-1-01")
def test_unknown_group(engine):
    """A group that there is not is refused by name."""
    manager = engine.SwapManager()
    for move in (manager.launch_offload, manager.wait_offload, manager.launch_load, manager.wait_load):
        with pytest.raises(RuntimeError, match="nobody's does not exist|\"nobody's\" does not exist"):
            move("nobody's")


@contract("SW-1-01")
@pytest.mark.parametrize("answer", [None, True, "SWAP"])
def test_no_policy(engine, world, answer):
    """What a policy gives that is none of an `ActivationPolicy` is refused."""
    with turn_of(engine.SwapManager()), pytest.raises(TypeError, match="expected an ActivationPolicy"):
        engine.swap_wrapper(Call(torch.exp), lambda _: answer)(given(world))


SAME = nn.Tanh()
REFUSED: dict[str, tuple[type[Exception], str, Callable[[Any], Any]]] = {
    "no_module": (TypeError, "a module", lambda engine: engine.swap_wrapper(torch.exp)),
    "no_function": (TypeError, "policy_fn", lambda engine: engine.swap_wrapper(nn.Tanh(), "SWAP")),
    "no_name": (TypeError, "name", lambda engine: engine.SwapManager().set_current_group_name(None)),
    "no_layer": (TypeError, "a layer", lambda engine: engine.SwapManager().set_forward_prefetch_layer(SAME, None)),
    "same_layer": (ValueError, "twice", lambda engine: engine.SwapManager().set_forward_prefetch_layer(SAME, SAME)),
    "one_dtype": (TypeError, "a set", lambda engine: engine.base_check_fn(torch.ones(1), dtypes=torch.float32)),
    "no_switch": (TypeError, "True or False", lambda engine: engine.set_swap_fusion("off").__enter__()),
}


@contract("SW-1-01")
@pytest.mark.parametrize(("error", "words", "call"), REFUSED.values(), ids=REFUSED)
def test_refused(engine, error, words, call):
    """An argument that cannot be meant is refused where it is given, and not at the next step."""
    with pytest.raises(error, match=words):
        call(engine)

"""Activation swap of torch_native: a reference on ``torch.autograd.graph.saved_tensors_hooks``.

PyTorch's own ``save_on_cpu`` copies while the computation waits, and has no groups. Here each group's copies are made
by a thread of their own, on a stream of its own where the device has streams. On the CPU, host memory is other memory.
"""

from __future__ import annotations

from hyper_parallel_tests.engines.torch_native.activation_swap.copies import set_swap_fusion, watch_swap_copies
from hyper_parallel_tests.engines.torch_native.activation_swap.manager import SwapManager
from hyper_parallel_tests.engines.torch_native.activation_swap.planning import (
    generate_swap_policy,
    plan_swap_groups,
    plan_swap_steps,
)
from hyper_parallel_tests.engines.torch_native.activation_swap.wrapper import (
    ActivationPolicy,
    base_check_fn,
    swap_wrapper,
)

__all__ = [
    "ActivationPolicy",
    "SwapManager",
    "base_check_fn",
    "generate_swap_policy",
    "plan_swap_groups",
    "plan_swap_steps",
    "set_swap_fusion",
    "swap_wrapper",
    "watch_swap_copies",
]

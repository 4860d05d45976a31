"""The module that puts what another one saves into groups, and what may be swapped."""

from __future__ import annotations

import enum
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import ActivationWrapper
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from hyper_parallel_tests.engines.torch_native.activation_swap.manager import SwapManager
from hyper_parallel_tests.engines.torch_native.activation_swap.saved import Handle, Kept


class ActivationPolicy(enum.Enum):
    """See the port."""

    SAVE = 0
    SWAP = 1


def base_check_fn(tensor: Tensor, *, min_bytes: int = 1, dtypes: frozenset[Any] | None = None) -> bool:
    """See the port."""
    if isinstance(dtypes, torch.dtype):
        raise TypeError(f"dtypes is {dtypes}: expected a set of dtypes, or None")
    if isinstance(tensor, nn.Parameter) or isinstance(tensor._base, nn.Parameter):
        return False
    if tensor.layout is not torch.strided or is_traceable_wrapper_subclass(tensor) or tensor.is_meta:
        return False
    if dtypes is not None and tensor.dtype not in dtypes:
        return False
    return tensor.untyped_storage().nbytes() >= max(min_bytes, 1)


class SwapWrapper(ActivationWrapper):
    """See ``swap_wrapper`` of the port."""

    def __init__(self, module: nn.Module, policy_fn: Callable[[Tensor], Any] | None) -> None:
        super().__init__(module)
        self._policy = policy_fn

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """The module's own, whose saved tensors may be swapped."""
        # By their storages: what is detached from a parameter does not say whose view it is.
        own = {id_of(one) for one in (*self.parameters(), *self.buffers())}

        def pack(tensor: Tensor) -> Kept | Handle:
            if not base_check_fn(tensor) or id_of(tensor) in own or not self._chosen(tensor):
                return Kept(tensor)
            return SwapManager().pack(tensor)

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda packed: packed.tensor()):
            return self._checkpoint_wrapped_module(*args, **kwargs)

    def _chosen(self, tensor: Tensor) -> bool:
        policy = ActivationPolicy.SWAP if self._policy is None else self._policy(tensor)
        if not isinstance(policy, ActivationPolicy):
            raise TypeError(f"policy_fn gave {policy!r}: expected an ActivationPolicy")
        return policy is ActivationPolicy.SWAP


def swap_wrapper(module: nn.Module, policy_fn: Callable[[Tensor], Any] | None = None) -> nn.Module:
    """See the port."""
    if not isinstance(module, nn.Module):
        raise TypeError(f"expected a module to wrap, found {module!r}")
    if policy_fn is not None and not callable(policy_fn):
        raise TypeError(f"policy_fn is {policy_fn!r}: expected a function of a tensor, or None")
    return SwapWrapper(module, policy_fn)


def id_of(tensor: Tensor) -> int:
    """Of the tensor's storage; 0 for a tensor that has none of its own."""
    return 0 if is_traceable_wrapper_subclass(tensor) else tensor.untyped_storage()._cdata

"""What ``fully_shard`` adds to a module: HyperParallel's HSDPModule on FSDP2's FSDPModule."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from numbers import Real

import torch
from torch import nn
from torch.distributed import fsdp
from torch.distributed.fsdp._fully_shard._fsdp_param import FSDPParam
from torch.distributed.fsdp._fully_shard._fsdp_param_group import FSDPParamGroup


class HSDPModule(fsdp.FSDPModule):
    """A wrapped module; see the port. Flags are checked here, because FSDP2 takes anything for a flag."""

    # Where FSDP2 finds the class to build when a wrapped container is sliced: behind HSDP<X>, HSDPModule,
    # FSDP<X> and FSDPModule.
    _orig_cls_mro_index = 4

    def set_requires_gradient_sync(self, requires_grad_sync: bool) -> None:
        """Whether backward reduces gradients."""
        super().set_requires_gradient_sync(_flag("requires_grad_sync", requires_grad_sync))

    def set_requires_all_reduce(self, requires_all_reduce: bool, *, recurse: bool = True) -> None:
        """Whether backward reduces over replicas too."""
        super().set_requires_all_reduce(_flag("requires_all_reduce", requires_all_reduce), recurse=recurse)

    def set_reshard_after_forward(self, reshard_after_forward: bool, recurse: bool = True) -> None:
        """Whether forward leaves shards behind."""
        super().set_reshard_after_forward(_flag("reshard_after_forward", reshard_after_forward), recurse=recurse)

    def set_reshard_after_backward(self, reshard_after_backward: bool, recurse: bool = True) -> None:
        """Whether backward leaves shards behind."""
        super().set_reshard_after_backward(_flag("reshard_after_backward", reshard_after_backward), recurse=recurse)

    def set_is_last_backward(self, is_last_backward: bool) -> None:
        """Whether the next backward finishes the step."""
        super().set_is_last_backward(_flag("is_last_backward", is_last_backward))

    def set_reduce_op_type(self, reduce_op_type: str, recurse: bool = True) -> None:
        """Whether reduced gradients are sums or averages."""
        if reduce_op_type not in ("sum", "avg"):
            raise ValueError(f'reduce_op_type must be "sum" or "avg", got {reduce_op_type!r}')
        for group in groups_of(self, recurse=recurse):
            # Dividing by one is the sum. Left to itself FSDP2 would fold the factor into the collective,
            # which gloo cannot do.
            group.gradient_divide_factor = 1.0 if reduce_op_type == "sum" else None
            group.force_sum_reduction_for_comms = reduce_op_type == "sum"

    def set_gradient_scaling_factor(self, factor: float | torch.Tensor | None) -> None:
        """Multiplies what a reduction yields."""
        _check_factor(factor)
        for group in groups_of(self, recurse=True):
            # The hook comes last, also after an all-reduce. FSDP2's divide factor would do, were it not applied
            # twice to what is sharded over a single rank.
            group._all_reduce_hook = None if factor is None else lambda reduced: reduced.mul_(factor)

    def set_modules_to_forward_prefetch(self, modules: Sequence[nn.Module]) -> None:
        """Modules to gather during this one's forward."""
        super().set_modules_to_forward_prefetch(_wrapped(modules))

    def set_modules_to_backward_prefetch(self, modules: Sequence[nn.Module]) -> None:
        """Modules to gather during this one's backward."""
        super().set_modules_to_backward_prefetch(_wrapped(modules))

    def unshard(self, async_op: bool = False) -> fsdp.UnshardHandle | None:
        """Gathers this module's own parameters."""
        return super().unshard(_flag("async_op", async_op))

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Drops every gradient of the tree.

        ``nn.Module.zero_grad`` sees only what is registered at the moment: not the shards' gradients while
        parameters are unsharded, and never those which wait for a reduction.
        """
        super().zero_grad(set_to_none)
        for group in groups_of(self, recurse=True):
            group._partial_reduce_output = None
            for parameter in group.fsdp_params:
                _drop_gradients(parameter, set_to_none)


def adopt(module: nn.Module) -> None:
    """Makes a module that FSDP2 has wrapped an HSDPModule."""
    cls = type(module)
    if cls not in _adopted:
        _adopted[cls] = type(f"HSDP{cls.__mro__[2].__name__}", (HSDPModule, cls), {})
    module.__class__ = _adopted[cls]


def groups_of(module: nn.Module, *, recurse: bool) -> Iterator[FSDPParamGroup]:
    """Communication groups of ``module``'s own call, or of all calls in its tree, each once."""
    seen = set()
    for child in module.modules() if recurse else (module,):
        if isinstance(child, fsdp.FSDPModule) and (state := child._get_fsdp_state()) not in seen:
            seen.add(state)
            yield from state._fsdp_param_groups


def _drop_gradients(parameter: FSDPParam, set_to_none: bool) -> None:
    parameter.unsharded_accumulated_grad = None
    if hasattr(parameter, "_unsharded_param"):
        parameter._unsharded_param.grad = None
    if set_to_none:
        parameter.sharded_param.grad = None
    elif parameter.sharded_param.grad is not None:
        parameter.sharded_param.grad.zero_()


def _check_factor(factor: float | torch.Tensor | None) -> None:
    number = isinstance(factor, Real) and not isinstance(factor, bool)
    if not (factor is None or number or (isinstance(factor, torch.Tensor) and factor.numel() == 1)):
        raise ValueError(f"a gradient scaling factor is a number, a tensor of one element or None, got {factor!r}")


def _flag(name: str, value: bool) -> bool:
    if not isinstance(value, bool):
        raise ValueError(f"{name} must be a bool, got {value!r}")
    return value


def _wrapped(modules: Sequence[nn.Module]) -> list[nn.Module]:
    if not isinstance(modules, list | tuple):
        raise ValueError(f"expected a list of wrapped modules, got {type(modules).__name__}")
    return list(modules)


_adopted: dict[type, type] = {}

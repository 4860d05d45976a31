"""A model whose chosen parameters and gradients are on the host between their uses."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd import Variable
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel
from torch.utils._pytree import tree_leaves

from hyper_parallel_tests.engines.torch_native.selective_offload.moving import Away, Slot

Choice = Callable[[str, nn.Parameter], bool] | None


def selective_offload(
    model: nn.Module, optimizer: torch.optim.Optimizer, *, parameters: Choice = None, gradients: Choice = None
) -> Offload:
    """See the port."""
    named = dict(model.named_parameters())
    chosen = {name: one for name, one in named.items() if parameters is not None and parameters(name, one)}
    if divided := [name for name, one in chosen.items() if isinstance(one, DTensor)]:
        raise ValueError(f"{', '.join(divided)} are divided: fully_shard them with offload_policy=CPUOffloadPolicy()")
    if gradients is not None and isinstance(model, DistributedDataParallel):
        raise ValueError("the gradients of DistributedDataParallel are not complete when they are accumulated")
    leaving = [one for name, one in named.items() if gradients is not None and gradients(name, one)]
    return Offload(model, optimizer, list(chosen.values()), [one for one in leaving if one.requires_grad])


class Offload:
    """See ``selective_offload`` of the port."""

    def __init__(
        self,
        model: nn.Module,
        optimizer: Any,
        parameters: list[nn.Parameter],
        gradients: list[nn.Parameter],
    ) -> None:
        self._model = model
        self._slots = {one: Slot(one) for one in parameters}
        self._gradients: dict[Tensor, Away] = {}
        self._handles: list[Any] = []
        for module in model.modules():
            if own := [self._slots[one] for one in module.parameters(recurse=False) if one in self._slots]:
                self._follow(module, own)
        for parameter, slot in self._slots.items():
            if parameter.requires_grad:
                self._handles.append(parameter.register_post_accumulate_grad_hook(lambda _, slot=slot: slot.leave()))
        self._handles += [one.register_post_accumulate_grad_hook(self._gradient_complete) for one in gradients]
        self._handles += [
            model.register_state_dict_post_hook(lambda *found: self._copied(*found)),
            model.register_load_state_dict_pre_hook(lambda *_: self._arrive(self._slots)),
            model.register_load_state_dict_post_hook(lambda *_: self._leave(self._slots)),
        ]
        for one in getattr(optimizer, "optimizers_dict", {"": optimizer}).values():
            self._handles += [
                one.register_step_pre_hook(lambda optimizer, *_: self._before_step(optimizer)),
                one.register_step_post_hook(lambda optimizer, *_: self._leave(_parameters(optimizer))),
            ]
        self._cleared = [model, optimizer, *getattr(optimizer, "optimizers_dict", {}).values()]
        for one in self._cleared:
            one.zero_grad = self._clearing(one.zero_grad)
        self._leave(self._slots)

    def load_gradients(self) -> None:
        """See the port."""
        self._load_gradients(list(self._gradients))

    def named_parameters(self) -> Iterator[tuple[str, Tensor]]:
        """See the port."""
        for name, one in self._model.named_parameters():
            yield name, self._slots[one].value() if one in self._slots else one

    def named_gradients(self) -> Iterator[tuple[str, Tensor]]:
        """See the port."""
        for name, one in self._model.named_parameters():
            if one in self._gradients:
                yield name, self._gradients[one].value()
            elif one.grad is not None:
                yield name, one.grad

    def remove(self) -> None:
        """See the port."""
        for handle in self._handles:
            handle.remove()
        for one in self._cleared:
            del one.zero_grad
        self._arrive(self._slots)
        self.load_gradients()

    def _follow(self, module: nn.Module, slots: list[Slot]) -> None:
        def before(*_: Any) -> None:
            for slot in slots:
                slot.uses += 1
                slot.arrive()

        def after(*_: Any) -> None:
            for slot in slots:
                slot.uses -= 1
                # What is computed once more in backward is needed there.
                if not slot.uses and torch._C._current_graph_task_id() == -1:
                    slot.leave()

        def result(_: nn.Module, __: Any, output: Any) -> None:
            for one in tree_leaves(output):
                if isinstance(one, Tensor) and one.requires_grad:
                    one.register_hook(backward)

        def backward(_: Tensor) -> None:
            for slot in slots:
                slot.arrive()
            # Frozen ones, and those whose gradient nobody wants, have no moment of their own at which they are done.
            Variable._execution_engine.queue_callback(lambda: self._leave(self._slots))

        self._handles += [
            module.register_forward_pre_hook(before, prepend=True),
            module.register_forward_hook(result),
            # After an exception too.
            module.register_forward_hook(after, always_call=True),
        ]

    def _gradient_complete(self, parameter: Tensor) -> None:
        if parameter.grad is None:
            return
        new = Away(parameter.grad)
        if parameter in self._gradients:
            self._gradients[parameter].add(new)
        else:
            self._gradients[parameter] = new
        self._gradients[parameter].wait()
        parameter.grad = None

    def _before_step(self, optimizer: torch.optim.Optimizer) -> None:
        own = _parameters(optimizer)
        self._arrive(own)
        self._load_gradients(own)

    def _load_gradients(self, parameters: Iterable[Tensor]) -> None:
        away = {one: self._gradients.pop(one) for one in parameters if one in self._gradients}
        for one in away.values():
            one.come()
        for parameter, one in away.items():
            parameter.grad = one.back()

    def _clearing(self, original: Callable[..., None]) -> Callable[..., None]:
        def zero_grad(set_to_none: bool = True) -> None:
            # Nobody has asked for zeros where there is no gradient on the device.
            self._gradients.clear()
            original(set_to_none)

        return zero_grad

    def _copied(self, module: nn.Module, state_dict: dict[str, Any], prefix: str, _: Any) -> None:
        for name, one in module.named_parameters(remove_duplicate=False):
            if one in self._slots and prefix + name in state_dict:
                state_dict[prefix + name] = self._slots[one].value().detach().clone()

    def _arrive(self, parameters: Iterable[Tensor]) -> None:
        for one in parameters:
            if one in self._slots:
                self._slots[one].arrive()

    def _leave(self, parameters: Iterable[Tensor]) -> None:
        for one in parameters:
            if one in self._slots and not self._slots[one].uses:
                self._slots[one].leave()


def _parameters(optimizer: torch.optim.Optimizer) -> list[Tensor]:
    return [one for group in optimizer.param_groups for one in group["params"]]

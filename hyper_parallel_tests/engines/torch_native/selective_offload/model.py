"""A model whose chosen parameters and gradients are on the host between their uses."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from types import MethodType
from typing import Any
from weakref import WeakSet

import torch
from torch import Tensor, nn
from torch.autograd import Variable
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel
from torch.utils._pytree import tree_leaves

from hyper_parallel_tests.engines.torch_native.selective_offload.moving import Away, Slot, local_of

Choice = Callable[[str, nn.Parameter], bool] | None

_offloaded: WeakSet[nn.Module] = WeakSet()


def selective_offload(
    model: nn.Module, optimizer: torch.optim.Optimizer, *, parameters: Choice = None, gradients: Choice = None
) -> Offload:
    """See the port."""
    named = dict(model.named_parameters())
    chosen = {name: one for name, one in named.items() if parameters is not None and parameters(name, one)}
    if divided := [name for name, one in chosen.items() if isinstance(one, DTensor)]:
        raise ValueError(f"{', '.join(divided)} are divided: fully_shard them with offload_policy=CPUOffloadPolicy()")
    if not _offloaded.isdisjoint(model.modules()):
        raise ValueError("the model, or a part of it, is offloaded already: choose in one call, or remove() the other")
    _check_memory(model, chosen)
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
        self._replaced: list[tuple[Any, str, Any, Any]] = []
        self._replace(model, "zero_grad", self._clearing)
        for one in getattr(optimizer, "optimizers_dict", {"": optimizer}).values():
            self._replace(one, "zero_grad", self._clearing)
            self._replace(one, "step", self._stepping)
        _offloaded.update(model.modules())
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
        for owner, name, ours, before in self._replaced:
            # What somebody has put around ours stays, and ours does nothing any more.
            if vars(owner).get(name) is ours:
                delattr(owner, name)
                if before is not None:
                    setattr(owner, name, before)
        self._arrive(self._slots)
        self.load_gradients()
        self._slots = {}
        _offloaded.difference_update(self._model.modules())

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

    def _replace(self, owner: Any, name: str, make: Callable[..., Callable[..., Any]]) -> None:
        before = vars(owner).get(name)
        # A method, as schedulers expect of a step.
        ours = MethodType(make(owner, getattr(owner, name)), owner)
        setattr(owner, name, ours)
        self._replaced.append((owner, name, ours, before))

    def _stepping(self, _: Any, original: Callable[..., Any]) -> Callable[..., Any]:
        # No hook is called when a step has failed.
        def step(optimizer: torch.optim.Optimizer, closure: Callable[[], Any] | None = None) -> Any:
            own = _parameters(optimizer)

            def passes() -> Any:
                loss = closure()
                # They have sent away what the step needs.
                self._bring(own)
                return loss

            self._bring(own)
            try:
                return original() if closure is None else original(passes)
            finally:
                self._leave(own)

        return step

    def _bring(self, parameters: list[Tensor]) -> None:
        self._arrive(parameters)
        self._load_gradients(parameters)

    def _load_gradients(self, parameters: Iterable[Tensor]) -> None:
        away = {one: self._gradients.pop(one) for one in parameters if one in self._gradients}
        for one in away.values():
            one.come()
        for parameter, one in away.items():
            parameter.grad = one.back()

    def _clearing(self, _: Any, original: Callable[..., None]) -> Callable[..., None]:
        def zero_grad(owner: nn.Module | torch.optim.Optimizer, set_to_none: bool = True) -> None:
            own = list(owner.parameters()) if isinstance(owner, nn.Module) else _parameters(owner)
            for one in own:
                if set_to_none:
                    self._gradients.pop(one, None)
                elif one in self._gradients:
                    self._gradients[one].clear()
            original(set_to_none)
            # What a failed backward has left on the device.
            self._leave(self._slots)

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


def _check_memory(model: nn.Module, chosen: dict[str, nn.Parameter]) -> None:
    """Refuses parameters whose memory is not theirs alone: it would be freed under the others."""
    users: dict[int, list[str]] = {}
    for name, one in (*model.named_parameters(), *model.named_buffers()):
        users.setdefault(local_of(one.detach()).untyped_storage()._cdata, []).append(name)
    for name, one in chosen.items():
        storage = one.untyped_storage()
        if len(users[storage._cdata]) > 1:
            raise ValueError(f"{', '.join(users[storage._cdata])} share memory: make {name} a parameter of its own")
        if storage.nbytes() != one.numel() * one.element_size():
            raise ValueError(
                f"{name} is {one.numel() * one.element_size()} of {storage.nbytes()} bytes of a larger memory: "
                "make it a parameter of its own"
            )

"""The groups of a process, whose turn it is, and the hooks by which layers move their groups."""

from __future__ import annotations

import weakref

import torch
from torch import Tensor, nn

from hyper_parallel_tests.engines.torch_native.activation_swap.saved import Handle, Saved, SwapGroup


class _Place:
    """A layer's place among the layers whose order is known; its neighbours may be gone meanwhile."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.previous: str | None = None
        self.next: str | None = None


class _Manager:
    """See the port."""

    def __init__(self) -> None:
        self._groups: dict[str, SwapGroup] = {}
        self._saved: weakref.WeakValueDictionary[int, Saved] = weakref.WeakValueDictionary()
        self._group_of: weakref.WeakKeyDictionary[Saved, SwapGroup] = weakref.WeakKeyDictionary()
        self._places: weakref.WeakKeyDictionary[nn.Module, _Place] = weakref.WeakKeyDictionary()
        self._current = ""
        # Layers inside which the computation is, with the names before.
        self._inside: list[tuple[nn.Module, str]] = []
        self._named = 0

    def get_current_group_name(self) -> str:
        """See the port."""
        return self._current

    def set_current_group_name(self, group_name: str) -> None:
        """See the port."""
        if not isinstance(group_name, str):
            raise TypeError(f"a group's name is a string, found {group_name!r}")
        self._current = group_name

    def launch_offload(self, group_name: str) -> None:
        """See the port."""
        self._group(group_name).launch_offload()

    def wait_offload(self, group_name: str) -> None:
        """See the port."""
        self._group(group_name).wait_offload()

    def launch_load(self, group_name: str) -> None:
        """See the port."""
        self._group(group_name).launch_load()

    def wait_load(self, group_name: str) -> None:
        """See the port."""
        self._group(group_name).wait_load()

    def pack(self, tensor: Tensor) -> Handle:
        """Puts a saved tensor's storage into the current group, out of any other that it was in."""
        group = self._groups.setdefault(self._current, SwapGroup())
        saved = self._saved.get(tensor.untyped_storage()._cdata)
        if saved is None or not saved.holds(tensor):
            saved = self._saved[tensor.untyped_storage()._cdata] = Saved(tensor)
            group.add(saved)
        elif (before := self._group_of[saved]) is not group:
            before.discard(saved)
            # The latest group needs it first.
            saved.keep(tensor)
            group.add(saved)
        self._group_of[saved] = group
        return Handle(tensor, saved)

    def set_forward_prefetch_layer(self, first_layer: nn.Module, second_layer: nn.Module) -> None:
        """See the port."""
        for layer in (first_layer, second_layer):
            if not isinstance(layer, nn.Module):
                raise TypeError(f"expected a layer, found {layer!r}")
        if first_layer is second_layer:
            raise ValueError(f"expected two layers, found the same one twice: {type(first_layer).__name__}")
        first, second = self._place(first_layer), self._place(second_layer)
        first.next, second.previous = second.name, first.name

    def _group(self, name: str) -> SwapGroup:
        if name not in self._groups:
            known = ", ".join(repr(one) for one in self._groups) or "none"
            raise RuntimeError(f"group {name!r} does not exist: expected one of {known}")
        return self._groups[name]

    def _place(self, layer: nn.Module) -> _Place:
        """The layer's place, with hooks from the first time on."""
        place = self._places.get(layer)
        if place is None:
            place = self._places[layer] = _Place(f"swap_group_{self._named}")
            self._named += 1
            self._groups[place.name] = SwapGroup()
            weakref.finalize(layer, self._groups.pop, place.name, None)
            layer.register_forward_pre_hook(lambda module, _: self._begin(module, place), prepend=True)
            layer.register_forward_hook(lambda *_: self._after_forward(place))
            # After an exception too.
            layer.register_forward_hook(lambda module, *_: self._end(module), always_call=True)
            layer.register_full_backward_pre_hook(lambda *_: self._before_backward(place), prepend=True)
        return place

    def _begin(self, layer: nn.Module, place: _Place) -> None:
        if not _in_backward():
            self._inside.append((layer, self._current))
            self._current = place.name

    def _after_forward(self, place: _Place) -> None:
        if _in_backward():
            return
        if place.next in self._groups:
            self.launch_offload(place.name)
        if place.previous in self._groups:
            self.wait_offload(place.previous)

    def _end(self, layer: nn.Module) -> None:
        if self._inside and self._inside[-1][0] is layer:
            self._current = self._inside.pop()[1]

    def _before_backward(self, place: _Place) -> None:
        if place.previous in self._groups:
            self.launch_load(place.previous)
        if place.next is not None:
            self.wait_load(place.name)


def _in_backward() -> bool:
    """Whether a layer runs once more inside backward, as checkpointed ones do; it is in nobody's order then."""
    return torch._C._current_graph_task_id() != -1


_manager = _Manager()


def SwapManager() -> _Manager:
    """See the port."""
    return _manager

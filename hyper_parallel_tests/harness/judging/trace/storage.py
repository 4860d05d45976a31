"""Follows the life of unsharded parameter storage through forward and backward."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch.autograd import Variable
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._pytree import tree_leaves

__all__ = ["Storage", "storage"]


class Storage:
    """Bytes of unsharded parameter storage after each event.

    Events are `forward_pre NAME` and `forward NAME` of each module, `backward_pre NAME` when a gradient
    reaches its output, `forward` at the end of the root's forward and `backward` when a backward pass is
    over.
    """

    def __init__(self, model: nn.Module, unsharded: Callable[[], Iterable[tuple[str, int]]] | None) -> None:
        self._model = model
        self._unsharded = unsharded or self._of_parameters
        self._resident = {_key(param) for _, param in model.named_parameters()}
        self._seen: dict[Any, tuple[str, StorageWeakRef]] = {}
        self.samples: list[tuple[str, dict[str, int]]] = []

    def sample(self, event: str) -> None:
        """Take a sample under a name of the case's own."""
        self.samples.append((event, {name: size for name, size in self._unsharded() if size}))

    def unsharded_bytes_after(self, event: str) -> int:
        """Bytes at the last sample of `event`, over all parameters.

        Raises:
            AssertionError: the event never happened; the message lists those that did.
        """
        return sum(self.unsharded_after(event).values())

    def unsharded_after(self, event: str) -> dict[str, int]:
        """Parameter name -> bytes of its unsharded storage at the last `event`, without empty ones."""
        for name, sizes in reversed(self.samples):
            if name == event:
                return sizes
        seen = ", ".join(dict.fromkeys(name for name, _ in self.samples)) or "nothing"
        raise AssertionError(f"{event!r} never happened; what happened is {seen}")

    def lines(self) -> list[str]:
        """`forward_pre fc1: 1024B (fc1.weight)` for each sample, in order."""
        return [
            f"{event}: {sum(sizes.values())}B" + (f" ({', '.join(sizes)})" if sizes else "")
            for event, sizes in self.samples
        ]

    def peak(self) -> int:
        """Largest number of unsharded bytes in any sample."""
        return max((sum(sizes.values()) for _, sizes in self.samples), default=0)

    def _of_parameters(self) -> Iterator[tuple[str, int]]:
        # A parameter's storage that was not there when the trace began holds gathered values. It is followed
        # also when the parameter is sharded again and the model does not show it any more: being freed is the
        # point.
        for name, param in self._model.named_parameters():
            key = _key(param)
            if key not in self._resident and key not in self._seen:
                self._seen[key] = (name, StorageWeakRef(_local(param).untyped_storage()))
        for name, reference in self._seen.values():
            left = torch.UntypedStorage._new_with_weak_ptr(reference.cdata)
            yield name, left.nbytes() if left is not None else 0


@contextmanager
def storage(model: nn.Module, *, unsharded: Callable[[], Iterable[tuple[str, int]]] | None = None) -> Iterator[Storage]:
    """Follow the unsharded parameter storage of `model` inside the block; enter it while it is sharded.

    Args:
        model: a module whose registered parameters are the sharded ones between uses, the gathered ones in
            use.
        unsharded: gives (parameter name, bytes of its unsharded storage now), for engines that do not
            register the gathered parameters in the module.
    """
    recording = Storage(model, unsharded)
    handles = []
    for name, module in model.named_modules():
        handles += _register(recording, name, module)
    try:
        yield recording
    finally:
        for handle in handles:
            handle.remove()


def _register(recording: Storage, name: str, module: nn.Module) -> list[Any]:
    def after(_module: nn.Module, _inputs: Any, output: Any) -> None:
        recording.sample(f"forward {name}" if name else "forward")
        for leaf in tree_leaves(output):
            if isinstance(leaf, torch.Tensor) and leaf.requires_grad:
                leaf.register_hook(lambda _: _on_gradient(recording, name))

    return [
        module.register_forward_pre_hook(lambda *_: recording.sample(f"forward_pre {name or 'root'}")),
        module.register_forward_hook(after),
    ]


def _on_gradient(recording: Storage, name: str) -> None:
    recording.sample(f"backward_pre {name or 'root'}")
    if not name:
        # Queued from a callback of the backward's end, to come after those that an engine has queued
        # meanwhile.
        queue = Variable._execution_engine.queue_callback
        queue(lambda: queue(lambda: recording.sample("backward")))


def _key(param: torch.Tensor) -> int:
    return _local(param).untyped_storage()._cdata


def _local(param: torch.Tensor) -> torch.Tensor:
    """The plain tensor of this rank."""
    local = param.detach()
    return local.to_local() if hasattr(local, "to_local") else local

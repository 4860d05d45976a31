"""The network with parts of its training on the host, and what the device holds of it, without the engine's help."""

from __future__ import annotations

import gc
from collections.abc import Callable, Collection
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.multiprocessing.reductions import StorageWeakRef

from hyper_parallel_tests.domains.optimizer.network import ADAMW, MUON, Network, batch, loss
from hyper_parallel_tests.models.seeding import Batch

Choice = Callable[[str, nn.Parameter], bool]
EVERYTHING = ("parameters", "gradients", "state")
SELECTIONS = {name: (name,) for name in EVERYTHING} | {"everything": EVERYTHING}
ONE_VALUE = 8


def all_of_them(_: str, __: nn.Parameter) -> bool:
    """Chooses every parameter."""
    return True


class Offloaded:
    """A network in training, of which some is on the host.

    Attributes:
        chain: its optimizers, of which the state is swapped if asked for.
        handle: of what else is offloaded.
    """

    def __init__(
        self,
        engine: Any,
        model: Network,
        what: Collection[str],
        *,
        chosen: Choice = all_of_them,
        batches: int = 3,
        min_numel: int = 0,
        state_keys: Collection[str] | None = None,
    ) -> None:
        self.model = model
        self.chain = engine.get_hyper_optimizer(model, muon=MUON, adamw=ADAMW)
        if "state" in what:
            config = engine.SwapOptimizerConfig(swap_times=batches, min_numel=min_numel, state_keys=state_keys)
            swapped = {k: engine.swap_optimizer(one, config) for k, one in self.chain.optimizers_dict.items()}
            self.chain = engine.ChainedOptimizer(model, swapped)
        self.handle = engine.selective_offload(
            model,
            self.chain,
            parameters=chosen if "parameters" in what else None,
            gradients=chosen if "gradients" in what else None,
        )

    def options(self) -> dict[str, Any]:
        """What `train` needs to see values that are on the host."""
        return {
            "optimizer": lambda _: self.chain,
            "params": lambda: list(self.handle.named_parameters()),
            "grads": lambda: list(self.handle.named_gradients()),
        }


def in_two_parts(model: nn.Module, rows: Batch) -> Tensor:
    """Two backwards before the step."""
    shares = [loss(model, rows.part(part, 2)) / 2 for part in range(2)]
    for share in shares:
        share.backward()
    return shares[0].detach() + shares[1].detach()


def stumble(model: Network, where: str) -> None:
    """A pass that fails in the middle of forward or backward."""

    def fail(*_: Any) -> None:
        raise ZeroDivisionError

    def fail_later(_: nn.Module, __: Any, output: Tensor) -> None:
        output.register_hook(fail)

    # The layer has its parameters on the device by then.
    fails = {"forward": model.down.register_forward_pre_hook, "backward": model.down.register_forward_hook}
    handle = fails[where](fail if where == "forward" else fail_later)
    with pytest.raises(ZeroDivisionError):
        loss(model, batch(9).to(model.up.weight.device)).backward()
    handle.remove()


class Residents:
    """What the device holds of a model's parameters, by the memory that they have at first."""

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self._first = {name: StorageWeakRef(_storage(one)) for name, one in model.named_parameters()}

    def bytes(self) -> dict[str, int]:
        """Of each parameter's memory, that and any other; the empty ones are left out."""
        sizes = {name: _bytes(reference) for name, reference in self._first.items()}
        for name, one in self._model.named_parameters():
            # What stands for values that are away is one value at most.
            if StorageWeakRef(_storage(one)) != self._first[name] and _storage(one).nbytes() > ONE_VALUE:
                sizes[name] += _storage(one).nbytes()
        return {name: size for name, size in sizes.items() if size}


def _storage(tensor: Tensor) -> torch.UntypedStorage:
    tensor = tensor.detach()
    return (tensor.to_local() if hasattr(tensor, "to_local") else tensor).untyped_storage()


def _bytes(reference: StorageWeakRef) -> int:
    gc.collect()
    found = torch.UntypedStorage._new_with_weak_ptr(reference.cdata)
    return 0 if found is None else found.nbytes()

"""Port of selective offload: parameters, gradients and optimizer state that wait in host memory between their uses."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    import torch
    from torch import nn


class SelectiveOffload(Protocol):
    """What is chosen is on the device while it is used, and in host memory between; the numbers are the same.

    The host's memory is memory of its own also where the device is the CPU. Copies are seen by ``watch_swap_copies``.
    """

    def SwapOptimizerConfig(
        self, swap_times: int = 16, state_keys: Sequence[str] | None = None, min_numel: int = 1024
    ) -> Any:
        """How optimizer state is swapped.

        Args:
            swap_times: the most batches of parameters that a step is made of, in their order and of about equal bytes.
                State of two neighbouring batches is on the device at once, at most.
            state_keys: the state that is swapped; None for all tensors with a dimension.
            min_numel: tensors of fewer elements on this rank stay on the device.

        Raises:
            ValueError: no batch at all, or a negative size.
            TypeError: ``state_keys`` is one text.
        """

    def swap_optimizer(self, optimizer: torch.optim.Optimizer, config: Any = None) -> torch.optim.Optimizer:
        """An optimizer that steps as ``optimizer`` does, whose state is on the device during its batch's step alone.

        It takes what state there is, and is used in the place of ``optimizer``: the same ``param_groups``,
        ``zero_grad``, ``state_dict`` and ``load_state_dict``. A step that fails leaves all state on the host.

        Args:
            config: ``SwapOptimizerConfig``; None for its defaults.
        """

    def selective_offload(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        *,
        parameters: Callable[[str, nn.Parameter], bool] | None = None,
        gradients: Callable[[str, nn.Parameter], bool] | None = None,
    ) -> Any:
        """Has chosen parameters and gradients wait on the host from now on; gives a handle.

        A parameter is on the device in forward and backward of the modules that hold it, and in the step of the
        optimizer, with what its closure does. Between, its memory is free and it reads as NaN; no other module may use
        it. State dicts of the model hold copies, and loading one reaches the host. Without gradients it is the same. A
        backward that fails may leave parameters on the device until the next ``zero_grad``, pass or step.

        A gradient leaves when it is complete; ``grad`` is None then, and what further backwards bring is added on the
        host. It is back in the step, and stays until it is cleared. ``zero_grad`` of the model and of each optimizer
        clears those of its own parameters wherever they are, to None or to zeros.

        The handle has ``load_gradients()``, which brings them back before the step, to be clipped for example;
        ``named_parameters()`` and ``named_gradients()``, pairs of name and value, whichever way it is, in the order of
        the model; and ``remove()``, which brings all back for good.

        Args:
            optimizer: one of the model, swapped or not.
            parameters, gradients: choose by name and parameter; None for none. Shards may be chosen for their
                gradients.

        Raises:
            ValueError: a divided parameter is chosen: its own policy does that (``CPUOffloadPolicy``); or one whose
                memory is also another parameter's, or a part of a larger one; names them. Or a module of the model is
                offloaded already.
        """

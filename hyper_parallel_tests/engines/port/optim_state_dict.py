"""Port of optimizer state dicts: the whole tensors, or each rank's parts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    import torch
    from torch import nn


class OptimStateDict(Protocol):
    """State dicts of optimizers whose parameters may be divided over ranks, keyed by parameter names.

    Forms and options are those of model state dicts (``StateDictOptions`` of that capability). All ranks call
    a member together, after ``step`` or before ``backward``: never with gradients at hand.
    """

    def get_optim_state_dict(
        self, model: nn.Module, optimizer: torch.optim.Optimizer, *, options: Any = None
    ) -> dict[str, Any]:
        """``{"state": {name: {...}}, "param_groups": [{"params": [names], ...}]}``.

        State that belongs to each element of a parameter is divided as the parameter is, or whole with
        ``full_state_dict``; together with ``cpu_offload`` the whole is on rank 0 alone, others get no tensors.
        """

    def set_optim_state_dict(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        optim_state_dict: dict[str, Any],
        *,
        options: Any = None,
    ) -> None:
        """Loads what ``get_optim_state_dict`` gives with the same options, the model divided in any way.

        Raises:
            RuntimeError: state of a parameter is missing; the message names it.
        """

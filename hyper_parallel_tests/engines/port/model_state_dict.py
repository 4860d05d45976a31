"""Port of model state dicts: the whole tensors, or each rank's parts."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    import torch
    from torch import nn


class ModelStateDict(Protocol):
    """State dicts of models whose parameters may be divided over ranks. Keys are those of the ordinary model.

    All ranks call a member together.
    """

    StateDictOptions: Callable[..., Any]
    """Which form a state dict has, by keyword, all False but the last:

    full_state_dict: whole tensors instead of each rank's parts.
    cpu_offload: tensors on the CPU.
    broadcast_from_rank0: loading reads rank 0's dict alone; needs ``full_state_dict``, else a ValueError on use.
    strict: loading insists on exactly the model's keys.
    """

    def get_model_state_dict(self, model: nn.Module, *, options: Any = None) -> dict[str, torch.Tensor]:
        """Parameters and persistent buffers by name.

        Returns:
            Without ``full_state_dict`` what each rank holds: divided parameters as distributed tensors that
            alias the model's. With it, whole plain tensors; together with ``cpu_offload`` these are CPU copies
            on rank 0, and an empty dict on every other rank.
        """

    def set_model_state_dict(
        self, model: nn.Module, model_state_dict: dict[str, torch.Tensor], *, options: Any = None
    ) -> Any:
        """Loads what ``get_model_state_dict`` gives with the same options, the model divided in any way.

        Deferred parameters (on the meta device) get storage and values; whether a parameter requires a
        gradient stays as it is.

        Args:
            model_state_dict: with ``full_state_dict`` whole tensors on every rank, or with
                ``broadcast_from_rank0`` on rank 0, others give an empty dict.

        Raises:
            RuntimeError: with ``strict``, keys are missing or unexpected; the message names them.
        """

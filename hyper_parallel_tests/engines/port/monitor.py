"""Port of the precision monitor: what a step's loss and gradients amount to, told without touching them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from torch import nn


class MonitorRecord(Protocol):
    """One step, as one rank sees it. Plain numbers."""

    step: int
    """Calls of ``record`` before this one."""
    local_loss: float | None
    """The loss that this rank gave; None where it gave none, as the stages of a pipeline before the last."""
    local_norm: float
    """2-norm of this rank's gradients: its shards, and its copies of what is not sharded. A gradient that lies
    otherwise than its parameter counts as it will update it, laid out like the parameter."""
    local_norms: Mapping[str, float]
    """The same of each parameter, by its name in the model; 0 for one without a gradient."""
    global_norm: float
    """2-norm of the gradients of the whole model, each element once; equal on all ranks."""


class Monitor(Protocol):
    """Precision monitoring of a training run. Source: S3 (precision monitor: global norm, local norm, local loss)."""

    def TrainingStateMonitor(
        self, model: nn.Module, *, mesh: Any = None, stage_dim: str | None = None, interval: int = 1
    ) -> Any:
        """The monitor of a model, to be asked between backward and update, where clipping would stand.

        ``record(loss=None)``: collective over ``mesh``; a number is reduced along each of its dimensions. Gives a
        ``MonitorRecord``, or None in the steps that ``interval`` leaves out, in which ranks do not communicate. It
        reads gradients and the loss, and writes nothing: gradients, parameters, graph and random state stay as they
        are, bit for bit. Norms are those of fp32 or wider, whatever the gradients have. A norm that is infinite or NaN
        is told and is no error.

        ``records``: all records so far, a list, the oldest first.

        Where a parameter has a ``main_grad`` other than None, that is its gradient. A parameter that requires no
        gradient is left out.

        Args:
            model: this rank's, wrapped or not; of a pipeline, this rank's stage.
            mesh: all ranks that train the model together, as a mesh with names; None: all ranks. A parameter that is
                a DTensor lies on dimensions of it, and is whole on each rank along the others; a plain one along all.
            stage_dim: the dimension of ``mesh`` along which ranks have parameters of their own.
            interval: record each so many steps, the first one among them.

        Raises:
            ValueError: ``interval`` is below 1, or ``stage_dim`` no dimension of ``mesh``; names the dimensions. From
                ``record``: no ``mesh`` was given, and parameters lie on one that has not all ranks.
        """

    def format_record(self, record: MonitorRecord, names: Sequence[str] = ()) -> str:
        """A line for a log: step, global norm, local norm, local loss, and the local norms of ``names``.

        Raises:
            KeyError: a name is no parameter's; near matches are named.
        """

"""Port of recovery: ranks that die and come again, a checkpoint before the end, and damage that nobody reports."""

from __future__ import annotations

import signal
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from torch import nn


class DivergedGradient(Protocol):
    """A gradient of which ranks hold copies, and not all the same."""

    name: str
    """Of the parameter, in the model."""
    ranks: tuple[int, ...]
    """Global ranks whose copy is damaged, ascending: those that most of the copies differ from. Where as many say one
    thing as another, as of two copies always, all that hold one."""
    certain: bool
    """Whether most copies agree, so that ``ranks`` are the damaged ones and no others."""


class Recovery(Protocol):
    """Fast recovery of a training run. Source: S3 (fault recovery: basic flow, process level, detection of silent data
    corruption)."""

    def elastic_run(
        self, function: Callable[..., Any], /, *args: Any, ranks: int, max_restarts: int = 0, shutdown_timeout: int = 5
    ) -> list[Any]:
        """Runs ``function(*args)`` in ``ranks`` processes of this host; what it returned, by rank.

        When one of them dies or raises, the others are ended and all are started anew. Each process has the environment
        that torchrun gives (RANK, WORLD_SIZE, MASTER_ADDR, ..., and TORCHELASTIC_RESTART_COUNT: 0 at first), and forms
        its process group and loads its snapshot itself. Processes meet on the loopback.

        Args:
            function: of a module; it and ``args`` travel to other processes, as does what it returns.
            ranks: at least 1.
            max_restarts: after so many, the next death is the end.
            shutdown_timeout: seconds that the others have to end by themselves, on SIGTERM.

        Raises:
            Exception: restarts are used up; names the rank that failed first, and how.
        """

    def LastWords(
        self,
        manager: Any,
        state: Callable[[], Mapping[str, Any]],
        *,
        signals: Sequence[int] = (signal.SIGTERM,),
        timeout: float = 30,
    ) -> Any:
        """A context around a training loop that no run leaves by force without a checkpoint. All ranks enter it.

        ``completed(step) -> bool``: collective; to be called behind each step. Copies the state as that of ``step``.
        Whether the run has to end, since a signal has come to some rank: the checkpoint of ``step`` is complete then.
        A signal does nothing else, whenever it comes.

        An exception that leaves the context on one rank ends what the others wait for; they leave with an error of
        theirs. All ranks meet anew, and save the newest step that every rank has completed; then the exception goes
        on, with a note that says which step was saved, or why none was. The process group is another one afterwards,
        good for nothing but to end, and network connections of the process other than to the group's store are shut.

        ``saved``: the step of the checkpoint that it has left behind, or found there; None while there is none.

        Args:
            manager: a ``CheckpointManager`` that saves synchronously; a step that it has already is not saved again.
            state: gives what is saved; is called in ``completed`` alone.
            signals: that ask the run to end. Handled in the main thread; behind the context by whom they were before.
            timeout: seconds that ranks wait for each other after an exception.
        """

    def diverged_gradients(self, model: nn.Module, *, mesh: Any) -> list[DivergedGradient]:
        """Compares the copies that ranks hold of reduced gradients, bit by bit, by one sum a parameter and rank.

        To be asked between backward and update. Collective over ``mesh``; equal on all of its ranks. Copies of a
        parameter are on the ranks along the dimensions of ``mesh`` over which it is not divided; with one that is not
        distributed on all ranks. A rank without a gradient that others have differs from them. Nothing is written. One
        flipped bit is always found, whatever number it is in.

        Args:
            model: this rank's; on all ranks of ``mesh`` with the same parameters.
            mesh: all ranks that train the model together, with names.

        Raises:
            ValueError: a parameter is divided over a dimension that ``mesh`` has not; names both.
        """

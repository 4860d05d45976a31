"""Port of distributed checkpoints: one folder that all ranks write together, and any other ranks read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol


class PlannedWrite(NamedTuple):
    """What one rank writes of one key.

    Attributes:
        key: of the state dict; keys of nested dicts and indices of lists are joined by dots.
        offsets: where the part begins in the whole tensor; None for what is no tensor.
        sizes: shape of the part; None for what is no tensor.
    """

    key: str
    offsets: tuple[int, ...] | None
    sizes: tuple[int, ...] | None


class PlannedRead(NamedTuple):
    """One block that one rank reads from one saved part into its own part of a key.

    Attributes:
        key: as in ``PlannedWrite``.
        saved_at: where the saved part begins in the whole tensor; None for what is no tensor.
        saved_offsets: where the block begins in the saved part.
        offsets: where the block begins in the reading rank's part.
        sizes: shape of the block.
    """

    key: str
    saved_at: tuple[int, ...] | None
    saved_offsets: tuple[int, ...]
    offsets: tuple[int, ...]
    sizes: tuple[int, ...]


class MetadataMembers(Protocol):
    """What a checkpoint says of itself."""

    version: str
    """Of the format, e.g. "1.0.0"."""
    state_dict_metadata: Mapping[str, Any]
    """For each key, by the names of ``PlannedWrite``, what was saved. Of a tensor: ``size``, the whole's shape;
    ``properties.dtype``, which ``str`` gives as PyTorch's; ``chunks``, the parts, with ``offsets`` and ``sizes``. What
    is no tensor has none of these."""


class AsyncSaveResponseMembers(Protocol):
    """A save under way."""

    def done(self) -> bool:
        """Whether ``get_result`` would return or raise at once."""

    def get_result(self, timeout: float | None = None) -> MetadataMembers:
        """Waits for the save, on each rank, and as often as asked gives what ``save`` gives.

        Args:
            timeout: seconds; None for no limit.

        Raises:
            CheckpointException: as ``save`` does.
            TimeoutError: the save is still under way; it goes on.
        """


class SavePlannerMembers(Protocol):
    """Divides the writing among the ranks. One planner serves one save at a time."""

    def configure_planner(self, state_dict: dict[str, Any], *, is_coordinator: bool, rank: int) -> None:
        """Gives it what ``rank`` has to save. One rank is the coordinator."""

    def build_local_plan(self) -> Any:
        """What this rank could write: its part of each tensor, and every object."""

    def build_global_plan(self, all_plans: list[Any]) -> tuple[list[Any], MetadataMembers]:
        """On the coordinator: what each rank has to write of what it could, a plan a rank, and the metadata.

        Each element of each tensor and each object is written once, by a rank that has it.
        """

    def finalize_plan(self, plan: Any) -> Any:
        """What this rank writes, from its place in the global plan."""


class LoadPlannerMembers(Protocol):
    """Divides the reading among the ranks. One planner serves one load at a time."""

    def configure_planner(
        self, state_dict: dict[str, Any], metadata: MetadataMembers, *, is_coordinator: bool, rank: int
    ) -> None:
        """Gives it what ``rank`` wants, and what there is."""

    def build_local_plan(self) -> Any:
        """What this rank reads: each element of its own parts once.

        Raises:
            RuntimeError or ValueError: as ``load`` has it in its CheckpointException.
        """

    def build_global_plan(self, all_plans: list[Any]) -> list[Any]:
        """On the coordinator: the plans of all ranks, seen together."""

    def finalize_plan(self, plan: Any) -> Any:
        """What this rank reads, from its place in the global plan."""


class DistributedCheckpoint(Protocol):
    """Checkpoints of state dicts, whose tensors may be divided over ranks in one way at save and another at load.

    A state dict maps keys to tensors of any dtype and shape, distributed tensors, objects that can be pickled, dicts
    and lists of all these, and objects that have ``state_dict`` and ``load_state_dict``. All ranks of the default group
    call a member together, unless it says otherwise.
    """

    CheckpointException: type[BaseException]
    """What all ranks raise when a save or load failed on any; the message has the rank, the key and the cause. In
    PyTorch it is no ``Exception``."""

    def save(self, state_dict: dict[str, Any], *, checkpoint_id: Path | str, planner: Any = None) -> MetadataMembers:
        """Writes the checkpoint, with its metadata last, and returns when it is complete.

        Waits first for an asynchronous save that is under way, whatever becomes of it.

        Args:
            checkpoint_id: folder, made where there is none; all ranks see it. What it holds is overwritten.
            planner: a ``StandardSavePlanner``; None for a new one.

        Raises:
            CheckpointException: a rank could not write.
        """

    def async_save(
        self, state_dict: dict[str, Any], *, checkpoint_id: Path | str, planner: Any = None
    ) -> AsyncSaveResponseMembers:
        """Takes a copy of everything in the state dict and returns; the copy is written beside the program.

        What is changed after the call, in place or not, is not in the checkpoint. The ranks agree over a group of their
        own, so that the program may go on with its collectives. Waits first for a save that is under way, whatever
        becomes of it, so that two never write at once. Arguments are those of ``save``.
        """

    def load(self, state_dict: dict[str, Any], *, checkpoint_id: Path | str, planner: Any = None) -> None:
        """Reads what the state dict asks for, and each rank no more than its parts of it.

        Tensors are filled in place, and stay the objects they are. What is no tensor is replaced in the dict or list
        that holds it. An object with ``load_state_dict`` gets what its ``state_dict()`` has become. Keys of the
        checkpoint that are not asked for are left alone.

        Args:
            planner: a ``StandardLoadPlanner``; None for a new one, which allows no missing keys.

        Raises:
            CheckpointException: there is no complete checkpoint, its format version is unknown, or for a key: it is
                not in the checkpoint, is a tensor of another shape or dtype there, or is a tensor on one side only.
                The message names the key, and nothing has been filled in then.
        """

    def StandardSavePlanner(self, *, enable_plan_caching: bool = False) -> SavePlannerMembers:
        """A planner of saves.

        Args:
            enable_plan_caching: plans are kept in the process, and made anew where the state dict has other keys,
                shapes, dtypes or parts than at the last save.
        """

    def StandardLoadPlanner(self, *, allow_partial_load: bool = False) -> LoadPlannerMembers:
        """A planner of loads.

        Args:
            allow_partial_load: keys that the checkpoint lacks stay as they are, instead of being an error.
        """

    def planned_writes(self, plan: Any) -> Sequence[PlannedWrite]:
        """What a plan of a save planner writes, in its order; no communication."""

    def planned_reads(self, plan: Any) -> Sequence[PlannedRead]:
        """What a plan of a load planner reads, in its order; no communication."""

    def read_checkpoint_metadata(self, checkpoint_id: Path | str) -> MetadataMembers:
        """The metadata of a checkpoint, by one rank alone.

        Raises:
            FileNotFoundError: the folder has none, so the checkpoint is not complete.
            ValueError: its format version is unknown; the message has it and the ones that are known.
        """

    def write_checkpoint_metadata(self, metadata: MetadataMembers, checkpoint_id: Path | str) -> None:
        """Puts metadata into a folder as it is, in place of what it has, by one rank alone."""

    def save_plan_cache_cleared(self) -> Any:
        """Context in which the process has no cached plan at first; what it had comes back."""

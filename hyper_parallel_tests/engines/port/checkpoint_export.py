"""Port of checkpoints in other formats: safetensors as Hugging Face has them, and single files of PyTorch."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import torch


class CheckpointExport(Protocol):
    """Models for those who read without ranks, and checkpoints turned into others.

    A folder of safetensors has files ``model-<i>-of-<n>.safetensors``, a tensor whole in one of them, and
    ``model.safetensors.index.json``, which has each tensor's file (``weight_map``) and the bytes of all of them
    (``metadata.total_size``).
    """

    def export_safetensors(
        self,
        state_dict: Mapping[str, torch.Tensor],
        folder: str | Path,
        *,
        dtype: torch.dtype | None = None,
        names: Mapping[str, str] | None = None,
        max_file_bytes: int | None = None,
    ) -> None:
        """Writes whole tensors of any shape and dtype, of which each rank has its part. All ranks call it together.

        Args:
            dtype: that of all floating-point tensors in the files, rounded to once; None for their own.
            names: name in the state dict -> name in the files; those that are not in it keep theirs.
            max_file_bytes: of tensors in one file, but a larger tensor has a file of its own; None for one file.

        Raises:
            ValueError: two tensors would have one name; has both.
        """

    def import_safetensors(
        self, state_dict: dict[str, torch.Tensor], folder: str | Path, *, names: Mapping[str, str] | None = None
    ) -> None:
        """Fills tensors in place from such a folder, each rank its part. All ranks call it together.

        Args:
            names: as in ``export_safetensors``.

        Raises:
            CheckpointException: that of distributed checkpoints: a name is not there, or its shape or dtype differs.
        """

    def dcp_to_torch_save(self, dcp_checkpoint_dir: str | Path, torch_save_path: str | Path) -> None:
        """Turns a distributed checkpoint into one file for ``torch.load``; one process, without a process group."""

    def torch_save_to_dcp(self, torch_save_path: str | Path, dcp_checkpoint_dir: str | Path) -> None:
        """Turns such a file into a distributed checkpoint; one process, without a process group.

        Raises:
            pickle.UnpicklingError: it holds what cannot be read without running code.
        """

    def dcp_to_safetensors(
        self,
        dcp_checkpoint_dir: str | Path,
        folder: str | Path,
        *,
        dtype: torch.dtype | None = None,
        max_file_bytes: int | None = None,
    ) -> None:
        """Turns the tensors of a distributed checkpoint into such a folder; one process, without a process group.

        Names of nested dicts are joined by dots, and what is no tensor is left out. Arguments as in
        ``export_safetensors``.
        """

    def safetensors_to_dcp(self, folder: str | Path, dcp_checkpoint_dir: str | Path) -> None:
        """Turns such a folder into a distributed checkpoint of a flat dict; one process, without a process group.

        Raises:
            ValueError: the index names a file outside of the folder.
        """

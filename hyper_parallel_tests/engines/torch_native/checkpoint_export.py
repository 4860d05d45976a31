"""Checkpoints in other formats, of torch_native: PyTorch's writer and reader of safetensors, and its conversions."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import Tensor
from torch.distributed.checkpoint import HuggingFaceStorageReader, HuggingFaceStorageWriter
from torch.distributed.checkpoint.format_utils import dcp_to_torch_save, torch_save_to_dcp
from torch.distributed.checkpoint.state_dict_loader import _load_state_dict_from_keys

from hyper_parallel_tests.engines.torch_native.distributed_checkpoint.planning import StandardLoadPlanner

__all__ = [
    "dcp_to_safetensors",
    "dcp_to_torch_save",
    "export_safetensors",
    "import_safetensors",
    "safetensors_to_dcp",
    "torch_save_to_dcp",
]

_INDEX = "model.safetensors.index.json"


def export_safetensors(
    state_dict: Mapping[str, Tensor],
    folder: str | Path,
    *,
    dtype: torch.dtype | None = None,
    names: Mapping[str, str] | None = None,
    max_file_bytes: int | None = None,
) -> None:
    """See the port."""
    state = {name: _exported(value, dtype) for name, value in _renamed(state_dict, names).items()}
    writer = HuggingFaceStorageWriter(
        str(folder),
        fqn_to_index_mapping=_numbers_of_files(state, max_file_bytes),
        save_distributed=True,
        enable_consolidation=True,
    )
    dcp.save(state, storage_writer=writer)
    if not dist.is_initialized() or dist.get_rank() == 0:
        # PyTorch leaves the ranks' parts, which are as many bytes again.
        shutil.rmtree(Path(folder) / "sharded")


def import_safetensors(
    state_dict: dict[str, Tensor], folder: str | Path, *, names: Mapping[str, str] | None = None
) -> None:
    """See the port."""
    dcp.load(
        _renamed(state_dict, names), storage_reader=HuggingFaceStorageReader(str(folder)), planner=StandardLoadPlanner()
    )


def dcp_to_safetensors(
    dcp_checkpoint_dir: str | Path,
    folder: str | Path,
    *,
    dtype: torch.dtype | None = None,
    max_file_bytes: int | None = None,
) -> None:
    """See the port."""
    whole = dict(_tensors(_load_state_dict_from_keys(checkpoint_id=dcp_checkpoint_dir)))
    export_safetensors(whole, folder, dtype=dtype, max_file_bytes=max_file_bytes)


def safetensors_to_dcp(folder: str | Path, dcp_checkpoint_dir: str | Path) -> None:
    """See the port."""
    from safetensors.torch import load_file

    weight_map = json.loads((Path(folder) / _INDEX).read_text())["weight_map"]
    state: dict[str, Tensor] = {}
    for file in sorted(set(weight_map.values())):
        if Path(file).name != file:
            raise ValueError(f"{folder}/{_INDEX} names {file!r}, which is no file of its folder")
        state |= load_file(Path(folder) / file)
    dcp.save({name: state[name] for name in weight_map}, checkpoint_id=dcp_checkpoint_dir, no_dist=True)


def _renamed(state_dict: Mapping[str, Tensor], names: Mapping[str, str] | None) -> dict[str, Tensor]:
    renamed: dict[str, Tensor] = {}
    for name, value in state_dict.items():
        new = (names or {}).get(name, name)
        if new in renamed:
            raise ValueError(f"{name} would be {new}, as another tensor is: give each a name of its own")
        renamed[new] = value
    return renamed


def _exported(value: Tensor, dtype: torch.dtype | None) -> Tensor:
    """A tensor that shares memory with no other, since safetensors refuses those that do."""
    wanted = dtype if dtype is not None and value.is_floating_point() else value.dtype
    return value.detach().to(wanted, copy=True).contiguous()


def _numbers_of_files(state: Mapping[str, Tensor], max_file_bytes: int | None) -> dict[str, int]:
    """From 1, in the order of the state."""
    numbers, used, last = {}, 0, 1
    for name, value in state.items():
        size = value.numel() * value.element_size()
        if max_file_bytes is not None and used and used + size > max_file_bytes:
            last, used = last + 1, 0
        used += size
        numbers[name] = last
    return numbers


def _tensors(state: Any, prefix: str = "") -> Any:
    """Pairs of joined name and tensor."""
    for name, value in state.items() if isinstance(state, Mapping) else enumerate(state):
        if isinstance(value, Tensor):
            yield f"{prefix}{name}", value
        elif isinstance(value, Mapping | list):
            yield from _tensors(value, f"{prefix}{name}.")

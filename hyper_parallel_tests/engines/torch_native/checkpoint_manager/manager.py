"""The manager: saves in steps, commits whole checkpoints, deletes old ones, finds and loads the newest."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.staging import DefaultStager, StagingOptions
from torch.distributed.tensor import DTensor

from hyper_parallel_tests.engines.torch_native.checkpoint_manager.agreement import CheckpointError, Ranks, told_clearly
from hyper_parallel_tests.engines.torch_native.checkpoint_manager.folder import CheckpointFolder
from hyper_parallel_tests.engines.torch_native.checkpoint_manager.manifest import (
    check_file,
    entry_of,
    read_manifest,
    sync,
)
from hyper_parallel_tests.engines.torch_native.checkpoint_manager.reading import GuardedReader, PlainPlanner
from hyper_parallel_tests.engines.torch_native.distributed_checkpoint.storage import Writer

__all__ = ["CheckpointManager"]


class CheckpointManager:
    """See the port."""

    def __init__(
        self,
        folder: str | Path,
        *,
        interval: int = 1,
        keep_latest_k: int | None = None,
        asynchronous: bool = False,
    ) -> None:
        if interval < 1:
            raise ValueError(f"interval is {interval}: expected at least 1 step between saves")
        if keep_latest_k is not None and keep_latest_k < 1:
            raise ValueError(f"keep_latest_k is {keep_latest_k}: expected at least 1, to have one to load")
        self._folder = CheckpointFolder(Path(folder))
        self._interval, self._keep = interval, keep_latest_k
        self._ranks = Ranks()
        self._writers, self._thread, self._pending = self._ranks, None, None
        if asynchronous:
            # Beside the training's collectives, those of the save need a group of their own to keep their order.
            self._writers = Ranks(None if self._ranks.alone else dist.new_group(backend="gloo"))
            self._thread = ThreadPoolExecutor(1, thread_name_prefix="checkpoint")

    def __enter__(self) -> CheckpointManager:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def path(self, step: int) -> Path:
        """See the port."""
        return self._folder.path(step)

    def steps(self) -> list[int]:
        """See the port."""
        # Where file systems lag, ranks see different folders: a checkpoint counts when every rank finds it.
        return sorted(set.intersection(*self._ranks.gather(self._folder.complete())))

    def latest(self) -> int | None:
        """See the port."""
        return max(self.steps(), default=None)

    def incomplete(self) -> list[int]:
        """See the port."""
        return sorted(set.union(*self._ranks.gather(self._folder.incomplete())))

    def save(self, step: int, states: Mapping[str, Any], *, force: bool = False) -> bool:
        """See the port."""
        if not force and step % self._interval:
            return False
        self.wait()
        state = _dicts_of(states)
        if self._thread is None:
            self._save(step, state)
        else:
            with told_clearly(f"checkpoint of step {step} was not saved"):
                staged: list[dict[str, Any]] = []
                self._ranks.together(lambda: staged.append(_staged(state)))
            self._pending = self._thread.submit(self._save, step, *staged)
        return True

    def wait(self) -> None:
        """See the port."""
        pending: Future[None] | None = self._pending
        self._pending = None
        if pending is not None:
            pending.result()

    def export(self, step: int, model_state: Mapping[str, Any], *, dtype: torch.dtype | None = None) -> Path:
        """See the port."""
        self.wait()
        state = dict(model_state) if dtype is None else cast_state(model_state, dtype)
        target = self._folder.export_path(step)
        self._write(f"export of step {step}", step, state, target)
        return target

    def load(self, states: Mapping[str, Any], step: int | None = None) -> int:
        """See the port."""
        self.wait()
        chosen = self.latest() if step is None else step
        if chosen is None:
            raise CheckpointError(
                f"{self._folder.root} has no complete checkpoint; incomplete ones: {self.incomplete() or 'none'}"
            )
        with told_clearly(f"checkpoint of step {chosen} was not loaded"):
            folder = self.path(chosen)
            manifest = self._ranks.together(partial(self._verify, folder, chosen))[self._ranks.rank]
            staged = _copied(_dicts_of(states))
            dcp.load(
                staged,
                storage_reader=GuardedReader(folder, manifest["files"]),
                planner=PlainPlanner(),
                no_dist=self._ranks.alone,
            )
        # All ranks have all of it: from here on nothing is read any more.
        _put({name: one for name, one in staged.items() if not hasattr(states[name], "load_state_dict")}, states)
        for name, value in states.items():
            if hasattr(value, "load_state_dict"):
                value.load_state_dict(staged[name])
        return chosen

    def close(self) -> None:
        """See the port."""
        try:
            self.wait()
        finally:
            if self._thread is not None:
                self._thread.shutdown()
            self._folder.unlock()

    def _verify(self, folder: Path, step: int) -> dict[str, Any]:
        """Each rank reads its share of the files, so that all of them are read once."""
        manifest = read_manifest(folder, step)
        for name in sorted(manifest["files"])[self._ranks.rank :: self._ranks.size]:
            check_file(folder, name, manifest["files"][name])
        return manifest

    def _save(self, step: int, state: dict[str, Any]) -> None:
        self._write(f"checkpoint of step {step}", step, state, self.path(step))
        if self._keep is not None:
            with told_clearly(f"old checkpoints behind step {step} were not deleted"):
                self._writers.first(partial(self._folder.prune, self._keep))

    def _write(self, what: str, step: int, state: dict[str, Any], target: Path) -> None:
        """Writes beside, and renames when all is there."""
        with told_clearly(f"{what} was not saved"):
            beside = self._writers.first(partial(self._folder.begin, target))
            try:
                dcp.save(
                    state,
                    storage_writer=Writer(beside),
                    process_group=self._writers.group,
                    no_dist=self._writers.alone,
                )
                mine = partial(_entries, beside, self._writers.rank, self._writers.size)
                files = {name: entry for part in self._writers.together(mine) for name, entry in part.items()}
                self._writers.first(partial(self._folder.commit, beside, target, step, files))
            except BaseException:
                # What a full disk holds would make the next save fail too; a rank that is late would delete its files.
                if self._writers.rank == 0:
                    self._folder.abandon(beside)
                raise


def cast_state(state: Mapping[str, Any], dtype: torch.dtype) -> dict[str, Any]:
    """A state dict whose floating-point tensors are rounded once; all else is the same objects."""

    def cast(value: Any) -> Any:
        return value.to(dtype) if isinstance(value, torch.Tensor) and value.is_floating_point() else value

    return {name: cast_state(one, dtype) if isinstance(one, Mapping) else cast(one) for name, one in state.items()}


def _entries(folder: Path, rank: int, size: int) -> dict[str, dict[str, Any]]:
    """Entries of this rank's share of the files, when these are on the disk.

    PyTorch's writer syncs a file before it has given all of it to the system.
    """
    names = sorted(file.name for file in folder.iterdir())[rank::size]
    for name in names:
        sync(folder / name)
    return {name: entry_of(folder / name) for name in names}


def _dicts_of(states: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value.state_dict() if hasattr(value, "state_dict") else value for name, value in states.items()}


def _staged(state: dict[str, Any]) -> dict[str, Any]:
    """A copy in host memory that nobody else changes."""
    stager = DefaultStager(StagingOptions(False, False, False, False))
    try:
        return stager.stage(state)
    finally:
        stager.close()


def _copied(value: Any) -> Any:
    """Dicts and lists of their own, tensors of the same form with values of their own."""
    if isinstance(value, torch.Tensor):
        return value.detach().clone()
    if isinstance(value, Mapping):
        return {name: _copied(one) for name, one in value.items()}
    return [_copied(one) for one in value] if isinstance(value, list) else value


def _put(loaded: Any, into: Any) -> None:
    """Puts what was loaded into the dicts, lists and tensors that are there."""
    for name, value in loaded.items() if isinstance(loaded, Mapping) else enumerate(loaded):
        if isinstance(value, torch.Tensor):
            here = into[name].detach()
            _local(here).copy_(_local(value))
        elif isinstance(value, Mapping) or _has_tensors(value):
            _put(value, into[name])
        else:
            into[name] = value


def _has_tensors(value: Any) -> bool:
    """Of a list: whether PyTorch saves it by its elements, and not as one value of any length."""
    if isinstance(value, Mapping | list):
        return any(map(_has_tensors, value.values() if isinstance(value, Mapping) else value))
    return isinstance(value, torch.Tensor)


def _local(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor

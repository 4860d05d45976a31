"""Where the cases save, and how they compare what comes back."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor


@contextmanager
def shared_folder(world: Any) -> Iterator[Path]:
    """Context with an empty folder that all ranks see; collective, and gone afterwards.

    After an error it stays for the ranks that still use it, till the launcher's folder goes.
    """
    name = [tempfile.mkdtemp() if world.rank == 0 else None]
    dist.broadcast_object_list(name)
    yield Path(name[0])
    dist.barrier()
    if world.rank == 0:
        shutil.rmtree(name[0])


def bits(tensor: Tensor) -> Tensor:
    """The bytes of a tensor in a last dimension of their own, so that NaNs and the sign of zero count."""
    return tensor.detach().contiguous().unsqueeze(-1).view(torch.uint8)

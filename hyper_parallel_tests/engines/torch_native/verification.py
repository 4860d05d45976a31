"""Verified groups: each collective starts only when every member has come to it.

PyTorch's nearest things name less: gloo's timeout names neither collective nor rank, and the debug level
DETAIL names the absent ranks on group rank 0 only.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from weakref import WeakKeyDictionary

import torch.distributed as dist
from torch.distributed import ProcessGroup


@dataclass
class _Watch:
    timeout: timedelta
    calls: int = 0


_watched: WeakKeyDictionary[ProcessGroup, _Watch] = WeakKeyDictionary()


def watch(group: ProcessGroup, timeout: timedelta) -> None:
    """Makes ``group`` a verified one, whose members wait for each other up to ``timeout``."""
    _watched[group] = _Watch(timeout)


def meet(collective: str, group: ProcessGroup | None) -> None:
    """Waits until all members of a verified ``group`` have come to the same ``collective``.

    Does nothing for a group that is not verified.

    Raises:
        RuntimeError: members are absent at the timeout, or came to another collective; all of them are named.
    """
    if group is None or (state := _watched.get(group)) is None:
        return
    store, ranks = group.get_group_store(), dist.get_process_group_ranks(group)
    keys = {rank: f"verified/{state.calls}/{rank}" for rank in ranks}
    store.set(keys[dist.get_rank()], collective)
    try:
        store.wait(list(keys.values()), state.timeout)
    except RuntimeError as error:
        absent = [rank for rank in ranks if not store.check([keys[rank]])]
        raise RuntimeError(
            f"{collective} on ranks {ranks}: rank {', '.join(map(str, absent))} did not join within "
            f"{state.timeout.total_seconds():g} s; find out where it is, or give the group a longer timeout"
        ) from error
    came_to = {rank: store.get(key).decode() for rank, key in keys.items()}
    if len(set(came_to.values())) > 1:
        raise RuntimeError(f"ranks {ranks} came to different collectives at call {state.calls}: {came_to}")
    # Whoever is here has read the previous call's keys.
    store.delete_key(f"verified/{state.calls - 1}/{dist.get_rank()}")
    state.calls += 1

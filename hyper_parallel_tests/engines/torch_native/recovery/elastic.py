"""Ranks of this host under torchrun's agent, by its own API."""

from __future__ import annotations

import multiprocessing
import os
import sys
from collections.abc import Callable
from typing import Any
from unittest import mock

from torch.distributed.launcher.api import LaunchConfig, launch_agent

__all__ = ["elastic_run"]

_LOOPBACK = "127.0.0.1"


def elastic_run(
    function: Callable[..., Any], /, *args: Any, ranks: int, max_restarts: int = 0, shutdown_timeout: int = 5
) -> list[Any]:
    """See the port."""
    # Have the processes forked off one that has loaded torch, which takes longer than most restarts.
    multiprocessing.set_forkserver_preload(["torch.distributed.tensor"])
    config = LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=ranks,
        run_id="elastic_run",
        rdzv_backend="c10d",
        rdzv_endpoint=f"{_LOOPBACK}:0",
        # The agent would otherwise ask the resolver for the host's name, which a bare container does not answer.
        local_addr=_LOOPBACK,
        max_restarts=max_restarts,
        start_method="forkserver",
        shutdown_timeout=shutdown_timeout,
    )
    with mock.patch.dict(os.environ, _environment()):
        found = launch_agent(config, function, list(args))
    return [found[rank] for rank in range(ranks)]


def _environment() -> dict[str, str]:
    return {
        # The agent's store would outlive a group, and the next one read the addresses of the dead (PyTorch 2.13).
        "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1",
        # Python 3.11 does not tell the fork server where this process finds its modules.
        "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
    }

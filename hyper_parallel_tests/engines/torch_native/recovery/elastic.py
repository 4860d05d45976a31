"""Ranks of this host under torchrun's agent, by its own API."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from tempfile import TemporaryDirectory
from typing import Any
from unittest import mock

from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs
from torch.distributed.launcher.api import LaunchConfig, launch_agent

__all__ = ["elastic_run"]

_LOOPBACK = "127.0.0.1"


def elastic_run(
    function: Callable[..., Any], /, *args: Any, ranks: int, max_restarts: int = 0, shutdown_timeout: int = 5
) -> list[Any]:
    """See the port."""
    # Have the processes forked off one that has loaded torch, which takes longer than most restarts.
    multiprocessing.set_forkserver_preload(["torch.distributed.tensor"])
    # The agent leaves behind what it has written, and the handlers by which it hears of its own end.
    with TemporaryDirectory(prefix="elastic_run_") as logs, _handlers_kept():
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
            logs_specs=DefaultLogsSpecs(logs),
        )
        with mock.patch.dict(os.environ, _environment()):
            found = launch_agent(config, function, list(args))
    return [found[rank] for rank in range(ranks)]


@contextmanager
def _handlers_kept() -> Iterator[None]:
    """Context behind which signals are handled by whom they were before."""
    before = {number: signal.getsignal(number) for number in signal.valid_signals()}
    try:
        yield
    finally:
        # Elsewhere the agent has left them alone.
        if threading.current_thread() is threading.main_thread():
            for number, handler in before.items():
                if signal.getsignal(number) != handler and handler is not None:
                    signal.signal(number, handler)


def _environment() -> dict[str, str]:
    return {
        # The agent's store would outlive a group, and the next one read the addresses of the dead (PyTorch 2.13).
        "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1",
        # Python 3.11 does not tell the fork server where this process finds its modules.
        "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
    }

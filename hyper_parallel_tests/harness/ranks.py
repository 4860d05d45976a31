"""Start and stop the processes of one group of ranks.

Ranks come out of a fork server that has torch, pytest and the harness loaded: the start of a further group costs a
fork a rank. More than one card goes through torch's elastic agent, so that ranks find the environment that torchrun
gives; one card needs no rendezvous, and the conductor then never loads torch. The fork server is itself forked off the
conductor, so that a launch imports torch once, and before the conductor has any thread, so that its forks are safe.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import logging
import multiprocessing
import multiprocessing.connection
import multiprocessing.forkserver
import multiprocessing.resource_tracker
import os
import signal
import socket
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol

from _pytest.config import default_plugins

from hyper_parallel_tests.harness import processes

# What every rank would otherwise import for itself, after its fork.
_ALWAYS = (
    "pdb",
    "pytest",
    "hyper_parallel_tests.harness.rank",
    *(f"_pytest.{name}" for name in default_plugins),
)
# What the conductor itself needs of torch for more than one card.
_ELASTIC = (
    "torch.distributed.elastic.agent.server.local_elastic_agent",
    "hyper_parallel_tests.harness.rendezvous",
)


def keep_sockets_in(folder: Path) -> None:
    """Have multiprocessing keep its sockets in `folder`, whose path must be short and which the caller removes."""
    multiprocessing.current_process()._config["tempdir"] = str(folder)


def start_fork_server(modules: Sequence[str], cards: int) -> None:
    """Start the fork server with `modules` loaded; it stays single-threaded, which is what makes its forks safe."""
    preload = [*_ALWAYS, *modules]
    # Collections while so much is loaded take a sixth of the time and free nothing. Ranks switch them on again.
    gc.disable()
    for name in _ELASTIC if cards > 1 else ():
        importlib.import_module(name)
    if len(os.listdir("/proc/self/task")) > 1:
        # A library has started threads on import, and their locks must not be forked; OMP_NUM_THREADS=1 avoids it.
        multiprocessing.forkserver.set_forkserver_preload(preload)
        multiprocessing.forkserver.ensure_running()
    else:
        _fork_server(preload)
    gc.enable()


def _fork_server(preload: Sequence[str]) -> None:
    """What multiprocessing.forkserver.ensure_running does, with a fork in place of a fresh interpreter."""
    multiprocessing.resource_tracker.ensure_running()
    address = multiprocessing.connection.arbitrary_address("AF_UNIX")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(address)
        os.chmod(address, 0o600)
        listener.listen()
        held, hold = os.pipe()
        pid = os.fork()
        if pid == 0:
            _be_fork_server(listener.fileno(), held, preload)
        os.close(held)
    server = multiprocessing.forkserver._forkserver
    server._forkserver_address, server._forkserver_alive_fd, server._forkserver_pid = address, hold, pid


def _be_fork_server(listener: int, held: int, preload: Sequence[str]) -> None:
    """Serve forks until nobody holds the other end of `held`; keeps nothing else of the conductor's open."""
    code = 1
    try:
        kept = sorted({0, 1, 2, listener, held, multiprocessing.resource_tracker.getfd()})
        for below, above in zip(kept, [*kept[1:], os.sysconf("SC_OPEN_MAX")], strict=True):
            os.closerange(below + 1, above)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        multiprocessing.forkserver.main(listener, held, preload)
    except SystemExit:
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)


def let_fork_server_go() -> None:
    """In a rank: give up the hold on the fork server that it was born with.

    The fork server lives as long as anybody holds it. Only the conductor may, or ranks in the middle of a case would
    outlive a conductor that is killed.
    """
    server = multiprocessing.forkserver._forkserver
    if server._forkserver_alive_fd is not None:
        os.close(server._forkserver_alive_fd)
        server._forkserver_alive_fd = None


class ForkServerError(Exception):
    """The fork server ended instead of starting a rank."""


class Ranks(Protocol):
    """A group of rank processes; `pids[r]` is the process of rank r."""

    pids: list[int]

    def exit_code(self, rank: int) -> int | None:
        """The exit code of a rank, negative for a signal, None while it runs."""

    def leave(self, grace_s: float) -> list[int]:
        """Wait for ranks that were told to finish; returns the ranks still running after `grace_s` seconds."""

    def kill(self) -> None:
        """End all ranks by SIGKILL, and what they started; returns when they are gone."""


def start(main: Callable[..., None], args: tuple[Any, ...], cards: int, start_method: str) -> Ranks:
    """Start `cards` ranks that run `main(*args)` and find their rank in the environment (RANK, WORLD_SIZE, ...).

    Raises:
        ForkServerError: the fork server is gone, most often since a module that it loads has an error.
    """
    try:
        if cards == 1:
            return _Alone(main, args, start_method)
        return _Elastic(main, args, cards, start_method)
    except (EOFError, ConnectionError, BrokenPipeError) as error:
        raise ForkServerError(
            "the fork server ended while it loaded torch, the harness or the engine; its own error stands at the top"
        ) from error


def _join(running: Sequence[Any], grace_s: float) -> list[int]:
    """Wait for processes; returns the positions of those still running after `grace_s` seconds in all."""
    end = time.monotonic() + grace_s
    for process in running:
        process.join(max(0.0, end - time.monotonic()))
    return [rank for rank, process in enumerate(running) if process.is_alive()]


def _end(pids: Sequence[int]) -> None:
    """Kill `pids` and everything below them. Children first noted, since a dead parent no longer lists them."""
    below = [child for pid in pids for child in processes.descendants(pid)]
    processes.kill([*pids, *below])


class _Alone:
    """One rank, no rendezvous."""

    def __init__(self, main: Callable[..., None], args: tuple[Any, ...], start_method: str) -> None:
        context = multiprocessing.get_context(start_method)
        environment = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "LOCAL_WORLD_SIZE": "1"}
        self._process = context.Process(target=_with_environment, args=(environment, main, args))
        self._process.start()
        self.pids = [self._process.pid]

    def exit_code(self, rank: int) -> int | None:
        return self._process.exitcode

    def leave(self, grace_s: float) -> list[int]:
        return _join([self._process], grace_s)

    def kill(self) -> None:
        _end(self.pids)
        self._process.join(5)


def _with_environment(environment: dict[str, str], main: Callable[..., None], args: tuple[Any, ...]) -> None:
    os.environ.update(environment)
    main(*args)


class _Elastic:
    """Ranks under torch's elastic agent, driven step by step: the conductor decides what a death means."""

    def __init__(self, main: Callable[..., None], args: tuple[Any, ...], cards: int, start_method: str) -> None:
        from torch.distributed.elastic.agent.server.api import WorkerSpec
        from torch.distributed.elastic.agent.server.local_elastic_agent import LocalElasticAgent
        from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs

        from hyper_parallel_tests.harness.rendezvous import OneHost

        logging.getLogger("torch.distributed.elastic").setLevel(logging.CRITICAL)
        spec = WorkerSpec(
            role="rank",
            local_world_size=cards,
            entrypoint=main,
            args=args,
            rdzv_handler=OneHost(),
            max_restarts=0,
            # The agent would otherwise ask the resolver for the host's name, which a bare container does not answer.
            local_addr="127.0.0.1",
        )
        self._agent = LocalElasticAgent(spec, DefaultLogsSpecs(log_dir=None), start_method)
        self._group = self._agent.get_worker_group()
        with _own_signal_handlers():
            self._agent._initialize_workers(self._group)
        started = self._agent._pcontext._pc.processes
        self._processes = list(started)
        self.pids = [process.pid for process in started]

    def exit_code(self, rank: int) -> int | None:
        return self._processes[rank].exitcode

    def leave(self, grace_s: float) -> list[int]:
        left = _join(self._processes, grace_s)
        if not left:
            self._agent._shutdown()
            self._shut_rendezvous()
        return left

    def kill(self) -> None:
        _end(self.pids)
        self._agent._shutdown(death_sig=signal.SIGKILL, timeout=5)
        self._shut_rendezvous()

    def _shut_rendezvous(self) -> None:
        self._group.spec.rdzv_handler.shutdown()


@contextlib.contextmanager
def _own_signal_handlers() -> Iterator[None]:
    """Keep the conductor's handlers: the agent installs its own, which only raise where it happens to wait."""
    kept = {
        number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)
    }
    try:
        yield
    finally:
        for number, handler in kept.items():
            signal.signal(number, handler)

"""A rank of a job: a process of its own that calls one function and says what became of it."""

from __future__ import annotations

import contextlib
import faulthandler
import gc
import os
import sys
import tempfile
import threading
import time
import traceback
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NoReturn

import pytest
from _pytest.assertion import install_importhook
from _pytest.config import get_config

from hyper_parallel_tests.harness import channel, evidence, loading, processes, seeding, sibling, stacks

if TYPE_CHECKING:
    from hyper_parallel_tests.harness.rank import Orders
    from hyper_parallel_tests.harness.starter import Launch

_BROKEN = 70


@dataclass(frozen=True)
class Returned:
    """The function has returned this, packed; its process stays until it is told to leave."""

    result: bytes


@dataclass(frozen=True)
class Raised:
    """The function has raised; the process ends now.

    `kind` is assertion, not-offered or error; `said` the exception's type and text; `declined` what the engine said
    that it does not offer: engine, member, reason.
    """

    kind: str
    at: float
    said: str
    traceback: str
    declined: tuple[str, str, str] | None = None


@dataclass(frozen=True)
class Leave:
    """Order: end. No rank of the job needs this one any more."""


class _Line:
    """To the case's rank. Backward may reach a fault on autograd's threads, so that several may send."""

    def __init__(self, address: str) -> None:
        self._line = channel.connect(address)
        self._sending = threading.Lock()
        self._pid = os.getpid()
        self._reached = False

    def send(self, message: object) -> None:
        if os.getpid() != self._pid:
            # A child that the function has forked has come back from it, and would speak for the rank twice.
            os._exit(_BROKEN)
        with self._sending:
            self._line.send(message)

    def reached(self, fault: str) -> None:
        """Tell once that the fault has taken effect."""
        if not self._reached:
            self._reached = True
            self.send(channel.Reached(fault))

    def wait(self) -> None:
        """Wait for the order to leave, or for the end of the case's rank."""
        with contextlib.suppress(EOFError, OSError):
            self._line.recv()


def prepare(orders: Orders) -> None:
    """What all ranks of jobs would do alike, done once in the process that forks them."""
    sys.path += loading.roots(orders.options)
    config = get_config()
    # pytest gives assertions of test files their texts, and functions of jobs are in test files.
    _rewriting.append(install_importhook(config))


_rewriting: list[Any] = []


def live(parent: int, orders: Orders, launch: Launch, rank: int) -> NoReturn:
    """The whole life of a rank, in a process that has just been forked off `parent`."""
    code = _BROKEN
    try:
        processes.die_with_parent()
        if os.getppid() != parent:
            os._exit(code)
        _settle_in(orders, launch, rank)
        late = orders.late
        clean = sibling.part(orders.options, late, rank, launch.cards, launch.folder / f"rank{rank}.sibling.stacks")
        line, probe = _Line(launch.address), channel.connect(launch.address)
        threading.Thread(
            target=evidence.answer_probes, args=(probe, [clean] if clean else []), name="probe", daemon=True
        ).start()
        code = _work(line, orders, launch, rank)
    except BaseException:
        traceback.print_exc()
    finally:
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError, ValueError):
                stream.flush()
        # What the function has left running must not keep the job.
        os._exit(code)


def _settle_in(orders: Orders, launch: Launch, rank: int) -> None:
    """Give this process its place in the job: output, stacks, folder, environment."""
    gc.freeze()
    log = os.open(launch.log(rank), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.close(log)
    sys.stdout.reconfigure(line_buffering=True)
    file = open(launch.stacks(rank), "a")  # noqa: SIM115  faulthandler writes to it until the end
    faulthandler.enable(file, all_threads=True)
    faulthandler.register(stacks.SIGNAL, file, all_threads=True, chain=False)
    os.chdir(orders.directory)
    own = launch.temporary(rank)
    own.mkdir()
    tempfile.tempdir = str(own)
    os.environ.update(_environment(launch, rank))
    os.environ |= {"TMPDIR": str(own), "TORCHINDUCTOR_CACHE_DIR": str(own / "inductor")}
    evidence.started_ns = time.time_ns()


def _environment(launch: Launch, rank: int) -> dict[str, str]:
    """What torchrun tells a rank; as there, the store at which the ranks meet is not in one of them."""
    ranks = {"RANK": rank, "LOCAL_RANK": rank, "ROLE_RANK": rank, "GROUP_RANK": 0}
    sizes = {
        "WORLD_SIZE": launch.cards,
        "LOCAL_WORLD_SIZE": launch.cards,
        "ROLE_WORLD_SIZE": launch.cards,
        "GROUP_WORLD_SIZE": 1,
    }
    meeting = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": launch.port}
    elastic = {
        "TORCHELASTIC_RUN_ID": f"job_{launch.number}",
        "TORCHELASTIC_RESTART_COUNT": 0,
        "TORCHELASTIC_MAX_RESTARTS": 0,
        "TORCHELASTIC_USE_AGENT_STORE": True,
    }
    return {name: str(value) for name, value in (ranks | sizes | meeting | elastic).items()}


def _work(line: _Line, orders: Orders, launch: Launch, rank: int) -> int:
    """Call the function and tell its end; returns the exit code."""
    try:
        result = _call(line, orders, launch, rank)
    except BaseException as error:
        line.send(_raised(error))
        return _exit_code(error)
    line.send(Returned(result))
    # A peer may be in the middle of what this rank has left already.
    line.wait()
    return 0


def _call(line: _Line, orders: Orders, launch: Launch, rank: int) -> bytes:
    from hyper_parallel_tests.harness import world
    from hyper_parallel_tests.harness.judging import clean

    device = orders.options.device
    where = world.device_of(device)
    world.join_process_group(device, rank, launch.cards)
    _apply_fault(line, orders, rank)
    _rewriting[0].mark_rewrite(launch.module)
    function, args = clean.unpack(launch.task)
    here = world.World(rank, launch.cards, where, world.engine_called(orders.options.engine))
    seeding.seed_all(device)
    result = function(here, *args)
    try:
        return clean.pack(result)
    except Exception as error:
        raise TypeError(
            f"what a function of a job returns travels back to the case, and this cannot be pickled: {error}; "
            "return numbers, plain tensors or containers of them"
        ) from error


def _apply_fault(line: _Line, orders: Orders, rank: int) -> None:
    """Put the fault of the run in, as in the case's own rank."""
    if orders.fault:
        from hyper_parallel_tests.faults import apply

        apply(orders.fault, rank, line.reached, orders.options.faults)


def _raised(error: BaseException) -> Raised:
    port = sys.modules.get("hyper_parallel_tests.engines.port")
    kind, declined = "error", None
    if isinstance(error, (AssertionError, pytest.fail.Exception)):
        kind = "assertion"
    elif port is not None and isinstance(error, port.EngineUnsupported):
        kind, declined = "not-offered", (error.engine, error.member, error.reason)
    return Raised(kind, time.time(), channel.bounded(_said(error)), channel.bounded(_traceback(error)), declined)


def _said(error: BaseException) -> str:
    try:
        text = str(error)
    except Exception:
        text = "(its text cannot be shown)"
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def _traceback(error: BaseException) -> str:
    """From the function on; what is above it is the same for all."""
    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_code.co_filename == __file__:
        trace = trace.tb_next
    try:
        return "".join(traceback.format_exception(type(error), error, trace))
    except Exception:
        return "(its traceback cannot be shown)"


def _exit_code(error: BaseException) -> int:
    """As of an interpreter that ends with this exception."""
    if isinstance(error, SystemExit):
        return error.code if isinstance(error.code, int) else 0 if error.code is None else 1
    return 1
